"""The ground-truth server: one thread, one epoll, and an engine step by timerfd that gives each stream one token.

The t_ns of a token is read right before the send that carries it, so a client's stamp can be compared with the truth.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from servebench.testing.groundtruth import answers
from servebench.testing.groundtruth.timer import Ticks
from servebench.testing.groundtruth.words import Words, count_messages, count_prompt

DEFAULT_TOKENS = 16
_PARTS = {chat: (answers.token_parts(chat, None), answers.token_parts(chat, "length")) for chat in (False, True)}


class StreamOptions(msgspec.Struct, gc=False):
    """Of OpenAI's `stream_options`, the one that the server knows."""

    include_usage: bool = False


class Ask(msgspec.Struct, gc=False):
    """What the server reads of a generation request; anything else in it is accepted and ignored."""

    messages: list[dict[str, Any]] | None = None
    prompt: str | list[Any] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


class Tokens(msgspec.Struct, gc=False):
    """Body of /tokenize (messages or prompt) and /detokenize (tokens)."""

    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    tokens: list[int] | None = None


_ask = msgspec.json.Decoder(Ask).decode
_tokens = msgspec.json.Decoder(Tokens).decode


@dataclass(slots=True, eq=False)
class Connection:
    """One client connection, and the answer that it carries at the moment.

    Attributes:
        sock, inbox, outbox: the socket, what came and is not handled yet, what the kernel would not take yet.
        streams: whether tokens are sent as they come; None when no answer is under way.
        chat, counts: which API is asked, and whether the stream shall end with its `usage`.
        prompt, total, left: tokens of the prompt, of the answer, and those still to come.
        first_at: CLOCK_MONOTONIC ns from which on the first token may come.
    """

    sock: socket.socket
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytes = b""
    streams: bool | None = None
    chat: bool = True
    counts: bool = False
    prompt: int = 0
    total: int = 0
    left: int = 0
    first_at: int = 0


class Server:
    """Serves on 127.0.0.1 until `stop` is set or the watched file descriptor is at its end.

    Args:
        port: to listen on; 0 picks a free one, see `port`.
        step_us: an engine step gives each stream a token this often.
        ttft_us: the first token of a request comes with the first step this long or longer after its body.
    """

    def __init__(self, port: int, step_us: int, ttft_us: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._ticks = Ticks(step_us * 1000)
        self._ttft_ns = ttft_us * 1000
        self._connections: dict[int, Connection] = {}
        self._waiting: deque[Connection] = deque()  # for their first token, in the order in which it is due
        self._active: list[Connection] = []
        self._words = Words()
        self._epoll = select.epoll()
        self._requests = self._sent = self._late_steps = 0
        self._routes: dict[str, Callable[[Connection, bytes], None]] = {
            "POST /v1/chat/completions": self._chat,
            "POST /v1/completions": self._completion,
            "POST /tokenize": self._tokenize,
            "POST /detokenize": self._detokenize,
            "GET /v1/models": lambda c, _: self._put(c, answers.reply(200, answers.MODELS)),
            "GET /health": lambda c, _: self._put(c, answers.reply(200, {})),
            "GET /stats": lambda c, _: self._put(c, answers.reply(200, self.stats())),
        }

    def stats(self) -> dict[str, int]:
        """Generation requests, tokens sent, and engine steps that a slow server had to leave out."""
        return {"requests": self._requests, "tokens": self._sent, "late_steps": self._late_steps}

    def run(self, watch: int | None = None) -> None:
        """Serve until `watch`, a pipe whose other end the parent holds, is closed."""
        poll, listener, ticks = self._epoll, self._listener.fileno(), self._ticks.fileno()
        for fd in (listener, ticks) if watch is None else (listener, ticks, watch):
            poll.register(fd, select.EPOLLIN)
        while True:
            for fd, events in poll.poll():
                if fd == ticks:
                    self._late_steps += self._ticks.read() - 1
                    self._step()
                elif fd == listener:
                    self._accept()
                elif fd == watch:
                    if not os.read(watch, 4096):
                        return
                elif (connection := self._connections.get(fd)) is not None:
                    self._ready(connection, events)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[sock.fileno()] = Connection(sock)
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _ready(self, connection: Connection, events: int) -> None:
        if events & select.EPOLLOUT:
            rest, connection.outbox = connection.outbox, b""
            self._epoll.modify(connection.sock.fileno(), select.EPOLLIN)
            self._put(connection, rest)
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            self._receive(connection)

    def _receive(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        connection.inbox += data
        self._handle(connection)

    def _handle(self, connection: Connection) -> None:
        """Answer the next complete request in the inbox; a pipelined one waits for the stream before it."""
        inbox = connection.inbox
        if connection.streams is not None or (end := inbox.find(b"\r\n\r\n")) < 0:
            return
        head = bytes(inbox[:end]).decode("latin-1")
        size = end + 4 + _content_length(head)
        if len(inbox) < size:
            return
        body = bytes(inbox[end + 4 : size])
        del inbox[:size]
        method, target, _ = head.split("\r\n", 1)[0].split(" ")
        route = self._routes.get(f"{method} {target.partition('?')[0]}")
        if route is None:
            self._put(connection, answers.failure(404, f"there is no {method} {target} here"))
            return
        try:
            route(connection, body)
        except msgspec.DecodeError as exc:
            self._put(connection, answers.failure(400, str(exc)))

    def _chat(self, connection: Connection, body: bytes) -> None:
        ask = _ask(body)
        self._generate(connection, ask, chat=True, prompt=count_messages(ask.messages or []))

    def _completion(self, connection: Connection, body: bytes) -> None:
        ask = _ask(body)
        self._generate(connection, ask, chat=False, prompt=count_prompt(ask.prompt))

    def _generate(self, connection: Connection, ask: Ask, *, chat: bool, prompt: int) -> None:
        self._requests += 1
        connection.first_at = time.monotonic_ns() + self._ttft_ns
        connection.chat, connection.prompt, connection.streams = chat, prompt, ask.stream
        connection.counts = ask.stream_options is not None and ask.stream_options.include_usage
        connection.total = connection.left = max(1, ask.max_completion_tokens or ask.max_tokens or DEFAULT_TOKENS)
        self._waiting.append(connection)
        if ask.stream:
            self._put(connection, answers.STREAM_HEAD)

    def _tokenize(self, connection: Connection, body: bytes) -> None:
        asked = _tokens(body)
        ids = self._words.encode(asked.prompt or "") if asked.messages is None else None
        ids = self._words.encode_messages(asked.messages or []) if ids is None else ids
        reply = {"tokens": ids, "count": len(ids), "max_model_len": 1_000_000}
        self._put(connection, answers.reply(200, reply))

    def _detokenize(self, connection: Connection, body: bytes) -> None:
        self._put(connection, answers.reply(200, {"prompt": self._words.decode(_tokens(body).tokens or [])}))

    def _step(self) -> None:
        """One engine step: a token for every stream, the ones whose first token is due included."""
        now, waiting, active = time.monotonic_ns(), self._waiting, self._active
        while waiting and waiting[0].first_at <= now:
            active.append(waiting.popleft())
        # A stream whose client does not read stalls, as a real server's would.
        moving = [connection for connection in active if not connection.outbox]
        last = [connection for connection in moving if connection.left == 1]
        for connection in moving:
            if connection.left > 1:
                connection.left -= 1
                if connection.streams:
                    self._token(connection)
        if last:
            self._finish(last)

    def _token(self, connection: Connection) -> None:
        before, behind = _PARTS[connection.chat][0]
        self._sent += 1
        self._put(connection, b"%b%d%b" % (before, time.time_ns(), behind))

    def _finish(self, finished: list[Connection]) -> None:
        for connection in finished:
            connection.left = 0
            self._last(connection)
            connection.streams = None
        self._active = [connection for connection in self._active if connection.left]
        for connection in finished:
            self._handle(connection)

    def _last(self, connection: Connection) -> None:
        """The last token, and in the same write the counts and the end."""
        chat, prompt, total = connection.chat, connection.prompt, connection.total
        if not connection.streams:
            self._sent += total
            self._put(connection, answers.whole(chat, prompt, total))
            return
        tail = answers.usage_event(chat, prompt, total) if connection.counts else b""
        before, behind = _PARTS[chat][1]
        self._sent += 1
        self._put(connection, b"%b%d%b%b" % (before, time.time_ns(), behind, tail + answers.STREAM_TAIL))

    def _put(self, connection: Connection, data: bytes) -> None:
        if connection.outbox:
            connection.outbox += data
            return
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # epoll reports it too, and there it is dropped
        if sent < len(data):
            self._later(connection, data[sent:])

    def _later(self, connection: Connection, rest: bytes) -> None:
        connection.outbox = rest
        self._epoll.modify(connection.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _drop(self, connection: Connection) -> None:
        del self._connections[connection.sock.fileno()]
        connection.sock.close()
        if connection.streams is not None:
            self._active = [other for other in self._active if other is not connection]
            self._waiting = deque(other for other in self._waiting if other is not connection)


def _content_length(head: str) -> int:
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            return int(value)
    return 0
