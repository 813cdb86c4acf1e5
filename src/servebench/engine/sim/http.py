"""A small HTTP/1.1 server side over `asyncio.Protocol`: whole requests in, whole responses or chunked streams out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast
from urllib.parse import urlsplit

import httptools

SIMULATED = b"x-servebench-simulated: 1\r\n"
MAX_BODY = 64 * 1024 * 1024

_REASONS = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request as received."""

    method: str
    path: str
    body: bytes
    keep_alive: bool
    chunked: bool


Handler = Callable[["HttpConnection", HttpRequest], None]


def head(status: int, *lines: bytes) -> bytes:
    """Return a status line and headers, with the mark that every response of the simulated engine carries."""
    start = f"HTTP/1.1 {status} {_REASONS[status]}\r\n".encode()
    return start + SIMULATED + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def chunk(payload: bytes) -> bytes:
    """Return `payload` as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


class HttpConnection(asyncio.Protocol):
    """One client connection; requests on it are answered one after the other.

    The handler answers with `respond`, or with `start_stream`, `write` and `end_stream`, at once or later.
    Set `on_disconnect` to learn that the client left before the answer was complete.
    """

    def __init__(self, handler: Handler, connections: set[HttpConnection]) -> None:
        self.on_disconnect: Callable[[], None] | None = None
        self._handler = handler
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[HttpRequest] = deque()
        self._current: HttpRequest | None = None
        self._url = b""
        self._body: list[bytes] = []
        self._body_size = 0
        self._expects_continue = False

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not derive from asyncio's
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever is answering."""
        self._transport = None
        del self._parser  # it refers to us: freed now, not at some collection
        self._connections.discard(self)
        self._queue.clear()
        gone, self.on_disconnect = self.on_disconnect, None
        if gone is not None:
            gone()

    def data_received(self, data: bytes) -> None:
        """Parse; a client that does not speak HTTP is told so and dropped."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request itself is queued; a server may ignore the offer to speak another protocol (RFC 9110, 7.8).
            self._parser = httptools.HttpRequestParser(self)
        except httptools.HttpParserError:
            self._refuse(413 if self._body_size > MAX_BODY else 400)

    # httptools callbacks

    def on_message_begin(self) -> None:
        """Forget the last request."""
        self._url = b""
        self._body = []
        self._body_size = 0
        self._expects_continue = False

    def on_url(self, url: bytes) -> None:
        """Collect the target, which may come in pieces."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note the one header that asks for an answer before the body."""
        if name.lower() == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True

    def on_headers_complete(self) -> None:
        """Ask for the body where the client waits to be asked."""
        if self._expects_continue:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Collect the body."""
        self._body_size += len(body)
        if self._body_size > MAX_BODY:
            raise ValueError("body too large")
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Queue the request, and answer it if none before it is being answered."""
        self._queue.append(
            HttpRequest(
                self._parser.get_method().decode("ascii"),
                urlsplit(self._url.decode("latin-1")).path,
                b"".join(self._body),
                self._parser.should_keep_alive(),
                self._parser.get_http_version() == "1.1",
            )
        )
        self._body = []
        self._next()

    # answering

    def respond(self, status: int, body: bytes, content_type: bytes = b"application/json") -> None:
        """Send a whole response and go on to the next request."""
        lines = [b"content-type: " + content_type, b"content-length: %d" % len(body)]
        if not self._keeps_alive:
            lines.append(b"connection: close")
        self.write(head(status, *lines) + body)
        self._done()

    def start_stream(self) -> bool:
        """Send the head of an event stream; return whether what follows must be framed as chunks (HTTP/1.1)."""
        assert self._current is not None
        chunked = self._current.chunked
        lines = [b"content-type: text/event-stream; charset=utf-8"]
        if chunked:
            lines.append(b"transfer-encoding: chunked")
        if not self._keeps_alive or not chunked:
            lines.append(b"connection: close")
        self.write(head(200, *lines))
        return chunked

    def write(self, data: bytes) -> None:
        """Send raw bytes; nothing happens once the client is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def end_stream(self, last: bytes) -> None:
        """Send the last raw bytes of a stream, terminating chunk included, and go on to the next request."""
        self.write(last)
        self._done()

    def close(self) -> None:
        """Close from our side once what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    @property
    def _keeps_alive(self) -> bool:
        return self._current is not None and self._current.keep_alive

    def _next(self) -> None:
        if self._current is None and self._queue and self._transport is not None:
            self._current = self._queue.popleft()
            self._handler(self, self._current)

    def _done(self) -> None:
        request, self._current = self._current, None
        self.on_disconnect = None
        if request is None or not request.keep_alive or not request.chunked:
            self.close()
        elif self._queue:
            # Later, not from within the step whose tokens are being handed out.
            asyncio.get_running_loop().call_soon(self._next)

    def _refuse(self, status: int) -> None:
        if self._current is None:
            self.write(head(status, b"content-length: 0", b"connection: close"))
        self.close()
