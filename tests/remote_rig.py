"""What tests of remote telemetry share: sources that say what time it is, a line that is slow, servers that lie."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from servebench.telemetry.source import Reading, SourceAbsent


class Ticker:
    """A source whose one value is the number of its sample; `said` has when each was read, by this machine's clock."""

    def __init__(self, name: str = "nvml", hz: float = 50.0, device: str = "gpu-0", own_stamp: bool = False) -> None:
        self.name = name
        self.hz = hz
        self.said: list[int] = []
        self._device = device
        self._own_stamp = own_stamp
        self.broken = False

    def open(self) -> None:
        """Nothing to do."""

    def sample(self) -> Sequence[Reading]:
        now = time.time_ns()
        self.said.append(now)
        count = float(len(self.said) - 1)
        return [
            (self._device, "power_w", count, now) if self._own_stamp else (self._device, "power_w", count),
            (self._device, "temp_mem_c", None),
        ]

    def facts(self) -> dict[str, Any]:
        if self.broken:
            raise OSError("no facts")
        return {"devices": [{"index": 0, "uuid": "GPU-1"}], "read": len(self.said)}

    def close(self) -> None:
        """Nothing to do."""


class Missing(Ticker):
    """A source that is not there."""

    def open(self) -> None:
        raise SourceAbsent("libnvidia-ml.so.1 is not on this machine")


class SlowLine:
    """Relays TCP to a port; each piece is late by up to `jitter_s`, at random, each way."""

    def __init__(self, port: int, jitter_s: float, seed: int = 1) -> None:
        self._target = port
        self._jitter_s = jitter_s
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._open += [client, server]
            for source, sink in ((client, server), (server, client)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._run(self._pump, source, sink)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while piece := source.recv(1 << 20):
                time.sleep(self._random.uniform(0, self._jitter_s))
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join(5)
        for each in self._open:
            each.close()

    def __enter__(self) -> SlowLine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


Page = tuple[int, bytes] | Callable[[], tuple[int, bytes]]


@contextmanager
def pages(answers: dict[str, Page], seen: list[Any] | None = None) -> Iterator[str]:
    """A server that answers as told: path, without its query, to status and body; `seen` gets the headers it got."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_GET(self) -> None:
            if seen is not None:
                seen.append(self.headers)
            answer = answers.get(self.path.partition("?")[0], (404, b"nothing here"))
            status, body = answer() if callable(answer) else answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = True

        def log_message(self, *arguments: Any) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
