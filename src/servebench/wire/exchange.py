"""One request on the wire and what came back: instants, head and stamped body."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

import httpx

MAX_BODY_BYTES = 256 << 20


class Exchange:
    """What happened to one request. Instants are CLOCK_REALTIME ns, None where the event did not happen.

    Attributes:
        connected_ns: when a new connection (with TLS, where there is TLS) stood; None on a kept-alive one.
        sent_ns: when the last request byte had been handed to the kernel.
        headers_ns: arrival of the read that completed the response head.
        end_ns: arrival of the read that completed the body, or the instant of the failure.
        status: HTTP status of the final response (1xx are skipped).
        headers: its header fields, names in lower case.
        parts, stamps: the body as received, in pieces, and for each piece the arrival of the read that brought it.
        received: body bytes so far, as transferred.
        error: why it ended early, as an httpx exception; None when the response was complete.
        user_stamped_reads: reads for which the kernel gave no stamp, so that the time of reading stands in.
        connection: number of the connection within its pool.
    """

    __slots__ = (
        "_done",
        "_inflate",
        "chunked",
        "connected_ns",
        "connection",
        "end_ns",
        "error",
        "finished",
        "headers",
        "headers_ns",
        "length",
        "on_end",
        "on_headers",
        "on_portion",
        "parts",
        "portion",
        "reads",
        "received",
        "sent_ns",
        "stamps",
        "started_ns",
        "status",
        "user_stamped_reads",
    )

    def __init__(self) -> None:
        self.connected_ns: int | None = None
        self.sent_ns: int | None = None
        self.headers_ns: int | None = None
        self.end_ns: int | None = None
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.parts: list[bytes] = []
        self.stamps: list[int] = []
        self.received = 0
        self.reads = 0
        self.user_stamped_reads = 0
        self.error: httpx.TransportError | None = None
        self.finished = False
        self.connection: int | None = None
        self.chunked = False
        self.length: int | None = None
        self.started_ns = 0
        self.on_headers: Callable[[Exchange], None] | None = None
        self.on_portion: Callable[[Exchange], None] | None = None
        self.portion = 1 << 60  # pieces of body after which `on_portion` is called
        self.on_end: Callable[[Exchange], None] | None = None
        self._inflate: zlib._Decompress | None = None
        self._done: asyncio.Future[None] | None = None

    def header(self, name: bytes) -> bytes | None:
        """The first header field called `name` (lower case), or None."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def take(self) -> tuple[list[bytes], list[int]]:
        """Hand over the body pieces received since the last call, with their stamps, and forget them."""
        parts, stamps = self.parts, self.stamps
        self.parts, self.stamps = [], []
        if (self.header(b"content-encoding") or b"").lower() in (b"gzip", b"x-gzip", b"deflate"):
            parts = [self._inflated(part) for part in parts]
        return parts, stamps

    def _inflated(self, part: bytes) -> bytes:
        if self._inflate is None:
            self._inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        try:
            return self._inflate.decompress(part, MAX_BODY_BYTES)
        except zlib.error as problem:
            self.error = self.error or httpx.DecodingError(f"the compressed body is damaged: {problem}")  # type: ignore[assignment]
            return b""

    def end(self, stamp: int, error: httpx.TransportError | None = None) -> None:
        """Close the record; the first call counts."""
        if self.finished:
            return
        self.finished = True
        self.end_ns = stamp
        self.error = self.error or error
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
        if self.on_end is not None:
            self.on_end(self)

    async def wait(self) -> None:
        """Return once the exchange has ended, well or badly."""
        if not self.finished:
            if self._done is None:
                self._done = asyncio.get_running_loop().create_future()
            await self._done
