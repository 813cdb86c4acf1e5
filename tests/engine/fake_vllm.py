"""Plays vLLM's API server for the tests of launching: its arguments, its routes, and the ways in which it goes wrong.

Copied by a fixture to where ``python -m vllm.entrypoints.openai.api_server`` finds it. FAKE_VLLM says how it behaves.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

MODE = os.environ.get("FAKE_VLLM", "serve")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="api_server.py")
    parser.add_argument("--model")
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction)
    return parser.parse_args()


class Handler(BaseHTTPRequestHandler):
    names: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        listed = [{"id": name} for name in self.names]
        answers = {
            "/health": {},
            "/version": {"version": "9.9.9"},
            "/v1/models": {"data": listed[:1] if MODE == "stranger" else listed},
        }
        self.reply(200 if self.path in answers else 404, answers.get(self.path, {}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if MODE == "die-at-first-request":
            print("RuntimeError: the first request was too much", flush=True)
            os._exit(4)
        if MODE == "hang-at-first-request":
            time.sleep(60)
        known = body["model"] == self.names[0] and self.path == "/v1/completions" and MODE != "refuse"
        self.reply(200 if known else 404, {"usage": {"completion_tokens": body["max_tokens"]}} if known else {"no": 1})

    def reply(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    options = arguments()
    print("arguments", json.dumps(sys.argv[1:]))
    print("environment", json.dumps(dict(os.environ)), flush=True)
    if MODE == "die":
        print("(EngineCore pid=7) ERROR 11-30 05:50:35 [core.py:1510] ValueError: no room for the KV cache")
        raise RuntimeError("Engine core initialization failed. See root cause above.")
    if MODE == "slow":
        time.sleep(60)
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print("helper", helper.pid, flush=True)
    Handler.names = options.served_model_name
    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
