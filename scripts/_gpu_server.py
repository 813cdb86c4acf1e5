"""A small LLM server for checks on a machine with a GPU: continuous batching over `_gpu_model`, OpenAI's streams.

Needs torch alone. Every step computes up to a budget of prompt tokens of the oldest unfinished prompt and then one
token for every sequence that is past its prompt, as servers with chunked prefill do. `/metrics` has vLLM's names, so
that the same tables can be made of it. Listens on 127.0.0.1 only; prints "ready PORT".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import threading
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from _gpu_model import SHAPES, Model, Shape

NAME = "tiny-random-gpu-check"  # servebench marks results of such a name: RANDOM WEIGHTS
TEMPLATE_TOKENS = 3  # what a chat adds
_NUMBERED = re.compile(r"w(\d+)")


def encode(text: str, vocabulary: int) -> list[int]:
    """A token a word; the word w17 is token 17."""
    return [_token(word, vocabulary) for word in text.split()]


def _token(word: str, vocabulary: int) -> int:
    numbered = _NUMBERED.fullmatch(word)
    return (int(numbered[1]) if numbered else zlib.crc32(word.encode())) % vocabulary


@dataclass(eq=False, slots=True)
class Sequence:
    """One request in the engine; instants are monotonic seconds."""

    prompt: list[int]
    max_tokens: int
    tokens: asyncio.Queue[int | None]
    arrived: float = field(default_factory=time.monotonic)
    scheduled: float = 0.0
    first: float = 0.0
    last: float = 0.0
    slot: int = -1
    done: int = 0  # prompt tokens computed
    made: int = 0
    latest: int = 0
    cancelled: bool = False

    @property
    def prefilled(self) -> bool:
        """Whether its whole prompt is computed."""
        return self.done == len(self.prompt)


class Engine:
    """Steps in a thread of its own, and hands each step's tokens over at once."""

    def __init__(self, model: Model, budget: int, loop: asyncio.AbstractEventLoop) -> None:
        self.model = model
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence | None] = [None] * model.shape.slots
        self._budget = budget
        self._loop = loop
        self._work = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, sequence: Sequence) -> None:
        """Queue a request."""
        with self._work:
            self.waiting.append(sequence)
            self._work.notify()

    def active(self) -> list[Sequence]:
        """The requests that have a slot."""
        return [sequence for sequence in self.running if sequence is not None]

    def _run(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self.waiting or self.active())
                self._admit()
            for made in (self._prefill, self._decode):
                self._loop.call_soon_threadsafe(self._deliver, list(made()))

    def _admit(self) -> None:
        for slot, sequence in enumerate(self.running):
            if sequence is None and self.waiting:
                self.running[slot] = new = self.waiting.popleft()
                new.slot, new.scheduled = slot, time.monotonic()

    def _prefill(self) -> Iterator[tuple[Sequence, int]]:
        fresh = [sequence for sequence in self.active() if not sequence.prefilled]
        if fresh:
            sequence = min(fresh, key=lambda each: each.scheduled)
            part = sequence.prompt[sequence.done : sequence.done + self._budget]
            token = self.model.prefill(part, sequence.slot, sequence.done)
            sequence.done += len(part)
            self.sums["step_tokens"] += len(part)
            if sequence.prefilled:
                self._account(sequence, token)
                yield sequence, token

    def _decode(self) -> Iterator[tuple[Sequence, int]]:
        self.sums["steps"] += 1
        ready = [each for each in self.active() if each.prefilled and 0 < each.made < each.max_tokens]
        if ready:
            size = max(each.slot for each in ready) + 1
            tokens, places = [0] * size, [0] * size
            for slot, other in enumerate(self.running[:size]):  # of those in prefill, the next place, written again
                places[slot] = other.done if other is not None else 0
            for each in ready:
                tokens[each.slot], places[each.slot] = each.latest, len(each.prompt) + each.made - 1
            made = self.model.decode(tokens, places)
            self.sums["step_tokens"] += len(ready)
            for each in ready:
                self._account(each, made[each.slot])
                yield each, made[each.slot]
        self._retire()

    def _account(self, sequence: Sequence, token: int) -> None:
        now = time.monotonic()
        if sequence.made:
            self.sums["itl"] += now - sequence.last
            self.sums["itl_count"] += 1
        else:
            sequence.first = now
            self.sums["ttft"] += now - sequence.arrived
            self.sums["ttft_count"] += 1
            self.sums["prompt_tokens"] += len(sequence.prompt)
        sequence.last, sequence.latest = now, token
        sequence.made += 1
        self.sums["generation_tokens"] += 1

    def _retire(self) -> None:
        for sequence in self.active():
            if sequence.cancelled or sequence.made >= sequence.max_tokens:
                self.running[sequence.slot] = None
                if not sequence.cancelled:
                    self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        self.sums["finished"] += 1
        self.sums["e2e"] += sequence.last - sequence.arrived
        self.sums["queue"] += sequence.scheduled - sequence.arrived
        self.sums["prefill"] += sequence.first - sequence.scheduled
        self.sums["decode"] += sequence.last - sequence.first
        self.sums["inference"] += sequence.last - sequence.scheduled

    @staticmethod
    def _deliver(made: list[tuple[Sequence, int]]) -> None:
        for sequence, token in made:
            sequence.tokens.put_nowait(token)


class Server:
    """The HTTP side."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._shape: Shape = engine.model.shape

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, path, _ = head.split(" ", 2)
                length = re.search(r"(?im)^content-length:\s*(\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                await self._answer(method, path, json.loads(body) if body else {}, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, method: str, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if method == "POST" and path in ("/v1/chat/completions", "/v1/completions"):
            await self._generate("chat" in path, body, writer)
        elif path == "/metrics":
            _send(writer, 200, self._metrics().encode(), "text/plain; version=0.0.4")
        elif (answer := self._small(path, body)) is not None:
            _send(writer, 200, json.dumps(answer).encode())
        else:
            _send(writer, 404, b'{"error": {"message": "no such path"}}')
        await writer.drain()

    def _small(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        if path == "/v1/models":
            model = {"id": NAME, "object": "model", "owned_by": "gpu-check", "max_model_len": self._shape.length}
            return {"object": "list", "data": [model]}
        if path == "/version":
            return {"version": f"torch {torch.__version__}"}
        if path == "/tokenize":
            tokens = self._prompt(body)
            return {"count": len(tokens), "tokens": tokens, "max_model_len": self._shape.length}
        if path == "/detokenize":
            return {"prompt": " ".join(f"w{token}" for token in body["tokens"])}
        return {} if path == "/health" else None

    def _prompt(self, body: dict[str, Any]) -> list[int]:
        if "messages" in body:
            text = " ".join(message["content"] for message in body["messages"])
            return [1] * TEMPLATE_TOKENS + encode(text, self._shape.vocabulary)
        prompt = body["prompt"]
        return encode(prompt, self._shape.vocabulary) if isinstance(prompt, str) else list(prompt)

    async def _generate(self, chat: bool, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        prompt = self._prompt(body)
        wanted = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        if not prompt or len(prompt) + wanted > self._shape.length:
            message = f"{len(prompt)} and {wanted} tokens do not fit into {self._shape.length}"
            _send(writer, 400, json.dumps({"error": {"message": message, "code": 400}}).encode())
            return
        sequence = Sequence(prompt, wanted, asyncio.Queue())
        self._engine.add(sequence)
        try:
            await self._stream(chat, sequence, writer)
        finally:
            sequence.cancelled = sequence.made < wanted

    async def _stream(self, chat: bool, sequence: Sequence, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(sequence.max_tokens):
            text = f" w{await sequence.tokens.get()}"
            ended = "length" if number == sequence.max_tokens - 1 else None
            part: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
            _event(writer, {"choices": [{"index": 0, **part, "finish_reason": ended}]})
            await writer.drain()
        prompt, made = len(sequence.prompt), sequence.max_tokens
        usage = {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}
        _event(writer, {"choices": [], "usage": usage})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    def _metrics(self) -> str:
        engine, sums = self._engine, self._engine.sums
        active = engine.active()
        used = sum(each.done + each.made for each in active) / (self._shape.slots * self._shape.length)
        plain = {
            "num_requests_running": len(active),
            "num_requests_waiting": len(engine.waiting),
            "kv_cache_usage_perc": used,
            "num_preemptions_total": 0,
            "prompt_tokens_total": sums["prompt_tokens"],
            "generation_tokens_total": sums["generation_tokens"],
            "prefix_cache_queries_total": 0,
            "prefix_cache_hits_total": 0,
            "request_success_total": sums["finished"],
            "iteration_tokens_total_sum": sums["step_tokens"],
            "iteration_tokens_total_count": sums["steps"],
            "time_to_first_token_seconds_sum": sums["ttft"],
            "time_to_first_token_seconds_count": sums["ttft_count"],
            "inter_token_latency_seconds_sum": sums["itl"],
            "inter_token_latency_seconds_count": sums["itl_count"],
        }
        for name, key in {"e2e_request_latency": "e2e", "request_queue_time": "queue"}.items():
            plain |= {f"{name}_seconds_sum": sums[key], f"{name}_seconds_count": sums["finished"]}
        for key in ("prefill", "decode", "inference"):
            plain |= {f"request_{key}_time_seconds_sum": sums[key]}
            plain |= {f"request_{key}_time_seconds_count": sums["finished"]}
        return "".join(f'vllm:{name}{{engine="0",model_name="{NAME}"}} {value}\n' for name, value in plain.items())


def _event(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    data = b"data: " + json.dumps({"id": "check", "model": NAME, **event}).encode() + b"\n\n"
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def _send(writer: asyncio.StreamWriter, status: int, body: bytes, kind: str = "application/json") -> None:
    reason = {200: "OK", 400: "Bad Request", 404: "Not Found"}[status]
    head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def main() -> None:
    """Load the model, warm it up, serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--budget", type=int, default=512, help="prompt tokens a step")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    shape = SHAPES["gpu" if options.device == "cuda" else "cpu"]
    model = Model(shape, options.device)
    for size in (options.budget, 64, 8):
        model.prefill([1] * size, 0, 0)
    model.decode([1] * shape.slots, [64] * shape.slots)
    server = Server(Engine(model, options.budget, asyncio.get_running_loop()))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", options.port, limit=1 << 24)
    print(f"ready {listening.sockets[0].getsockname()[1]}", flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
