"""One HTTP/1.1 connection on a socket of our own: every read keeps the kernel's receive stamp."""

from __future__ import annotations

import errno
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable

import httptools
import httpx

from servebench.wire.exchange import MAX_BODY_BYTES, Exchange
from servebench.wire.reactor import READ, WRITE, Reactor

READ_SIZE = 16_384  # larger buffers only fragment the heap: tokens come in hundreds of bytes
_SO_TIMESTAMPNS = 35  # asm-generic/socket.h; Python has no name for it
_ANCILLARY = socket.CMSG_SPACE(16)
_timespec = struct.Struct("qq").unpack_from
_now = time.time_ns
_NOTHING = memoryview(b"")
_NOT_HTTP = (httptools.HttpParserError, httptools.HttpParserUpgrade)  # the second is no kind of the first


def open_socket(family: int) -> socket.socket:
    """A non-blocking TCP socket that asks the kernel to stamp what it receives."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":  # elsewhere reads carry no stamp, which is counted and reported
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    return sock


class Connection:
    """A connected socket that carries one exchange at a time.

    Args:
        sock: from `open_socket`, connected or connecting.
        reactor: tells when it is ready.
        number: its number within the pool.
        tls: the TLS side and its two memory buffers, or None for plain HTTP.
        on_idle: called when an exchange has ended and the connection can take another.
        on_closed: called once when the connection is gone.
    """

    __slots__ = (
        "_head",
        "_incoming",
        "_on_closed",
        "_on_idle",
        "_outgoing",
        "_parser",
        "_reactor",
        "_recvmsg",
        "_stamp",
        "_tls",
        "_unsent",
        "closed",
        "exchange",
        "idle_since_ns",
        "last_read_ns",
        "last_sent_ns",
        "number",
        "sock",
    )

    def __init__(
        self,
        sock: socket.socket,
        reactor: Reactor,
        number: int,
        tls: tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO] | None,
        on_idle: Callable[[Connection], None],
        on_closed: Callable[[Connection], None],
    ) -> None:
        self.sock = sock
        self.number = number
        self.exchange: Exchange | None = None
        self.closed = False
        self.idle_since_ns = 0
        self.last_read_ns = 0
        self.last_sent_ns = 0
        self._recvmsg = sock.recvmsg
        self._reactor = reactor
        self._tls = tls[0] if tls else None
        self._incoming, self._outgoing = (tls[1], tls[2]) if tls else (ssl.MemoryBIO(), ssl.MemoryBIO())
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._parser = httptools.HttpResponseParser(self)
        self._stamp = 0
        self._unsent = _NOTHING
        self._head: list[tuple[bytes, bytes]] = []

    def start(self, exchange: Exchange, payload: bytes) -> None:
        """Send `payload` (a whole HTTP/1.1 request) and record what comes back in `exchange`."""
        self.exchange = exchange
        exchange.connection = self.number
        if self._tls is not None:
            self._tls.write(payload)
            payload = self._outgoing.read()
        self._send(payload)

    def still_open(self) -> bool:
        """Whether an idle connection can be used: it looks for an end, or a good-bye, that was not seen yet."""
        self._read()
        return not self.closed

    def close(self) -> None:
        """Close the socket; a running exchange must have been ended before."""
        if self.closed:
            return
        self.closed = True
        self._reactor.unregister(self.sock.fileno())
        self.sock.close()
        self._on_closed(self)

    def abort(self, error: httpx.TransportError) -> None:
        """End the running exchange with `error` and close."""
        exchange, self.exchange = self.exchange, None
        self.close()
        if exchange is not None:
            exchange.end(_now(), error)

    # What the reactor calls.

    def ready(self, mask: int) -> None:
        """Read, or go on sending."""
        if mask & WRITE:
            self._send(self._unsent)
        if mask & ~WRITE and not self.closed:
            self._read()

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._recvmsg(READ_SIZE, _ANCILLARY)
        except BlockingIOError:
            return
        except OSError as problem:
            self._lost(problem)
            return
        exchange = self.exchange
        if ancillary:
            seconds, nanoseconds = _timespec(ancillary[0][2])
            self._stamp = self.last_read_ns = stamp = seconds * 1_000_000_000 + nanoseconds
        else:
            self._stamp = self.last_read_ns = stamp = _now()
            if exchange is not None and data:
                exchange.user_stamped_reads += 1
        if not data:
            self._ended(stamp)
            return
        if exchange is None:
            self._unasked(data)
            return
        exchange.reads += 1
        try:
            if self._tls is not None:
                self._decrypt(data)
            else:
                self._parser.feed_data(data)
        except _NOT_HTTP as problem:
            self.abort(httpx.RemoteProtocolError(f"not HTTP/1.1: {problem}"))
            return
        if len(exchange.parts) >= exchange.portion and exchange.on_portion is not None and not exchange.finished:
            exchange.on_portion(exchange)

    def _unasked(self, data: bytes) -> None:
        """A late answer, or a server that says good-bye; under TLS perhaps only a session ticket."""
        try:
            if self._tls is not None:
                self._decrypt(data)
            else:
                self.close()
        except _NOT_HTTP:
            self.close()

    def _decrypt(self, data: bytes) -> None:
        assert self._tls is not None
        self._incoming.write(data)
        while not self.closed:
            try:
                plain = self._tls.read(READ_SIZE)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError as problem:
                self.abort(httpx.ReadError(f"TLS: {problem.reason or problem}"))
                return
            if not plain:
                self._ended(self._stamp)
                return
            self._parser.feed_data(plain)
        if self._outgoing.pending and not self.closed:  # a key update wants an answer
            more = self._outgoing.read()
            self._send(bytes(self._unsent) + more if self._unsent else more)

    def _send(self, payload: bytes | memoryview) -> None:
        stamp = _now()  # before the call: an answer may be here before the call returns
        try:
            sent = self.sock.send(payload)
        except BlockingIOError:
            sent = 0
        except OSError as problem:
            self._unsent = memoryview(payload)
            self._cannot_send(problem)
            return
        if sent:
            self.last_sent_ns = stamp
        if sent < len(payload):
            if not self._unsent:
                self._reactor.modify(self.sock.fileno(), READ | WRITE)
            self._unsent = memoryview(payload)[sent:]  # no copy: a long request is sent in many pieces
            return
        if self._unsent:
            self._unsent = _NOTHING
            self._reactor.modify(self.sock.fileno(), READ)
        exchange = self.exchange
        if exchange is not None and exchange.sent_ns is None:
            exchange.sent_ns = stamp

    def _cannot_send(self, problem: OSError) -> None:
        """The server reads no more; it may have answered first, as when it refuses a long request."""
        exchange, reads = self.exchange, -1
        while exchange is not None and self.exchange is exchange and exchange.reads > reads:
            reads = exchange.reads
            self._read()
        if not self.closed:
            self._lost(problem)

    def _lost(self, problem: OSError) -> None:
        kind = httpx.ReadError if self.exchange is None or self.exchange.sent_ns else httpx.WriteError
        self.abort(kind(f"the connection was lost: {errno.errorcode.get(problem.errno or 0, '?')} {problem.strerror}"))

    def _ended(self, stamp: int) -> None:
        """The server closed its side."""
        exchange, self.exchange = self.exchange, None
        self.close()
        if exchange is None:
            return
        if exchange.headers_ns is None:
            error = httpx.RemoteProtocolError("the server closed the connection before it answered")
        elif exchange.chunked or exchange.length is not None:
            error = httpx.RemoteProtocolError("the server closed the connection inside the body")
        else:
            error = None  # a body that is delimited by the close, as in HTTP/1.0
        exchange.end(stamp, error)

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A response starts, perhaps an interim one; an unasked one must not be taken for the next answer."""
        if self.exchange is None:
            self.close()
        self._head = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header field, or after the body one trailer field."""
        self._head.append((name.lower(), value.strip()))

    def on_headers_complete(self) -> None:
        """The head is there; interim (1xx) responses are passed over."""
        status = self._parser.get_status_code()
        exchange = self.exchange
        if status < 200 or exchange is None:
            return
        exchange.status = status
        exchange.headers, self._head = self._head, []
        exchange.headers_ns = self._stamp
        exchange.chunked = b"chunked" in (exchange.header(b"transfer-encoding") or b"").lower()
        length = exchange.header(b"content-length")
        exchange.length = int(length) if length and length.isdigit() and not exchange.chunked else None
        if exchange.on_headers is not None:
            exchange.on_headers(exchange)

    def on_body(self, part: bytes) -> None:
        """A piece of the body, chunk framing removed."""
        exchange = self.exchange
        if exchange is None:
            return
        exchange.parts.append(part)
        exchange.stamps.append(self._stamp)
        exchange.received += len(part)
        if exchange.received > MAX_BODY_BYTES:
            self.abort(httpx.RemoteProtocolError(f"the body is larger than {MAX_BODY_BYTES >> 20} MiB"))

    def on_message_complete(self) -> None:
        """The response is whole; the connection is kept if both sides allow it."""
        exchange = self.exchange
        if exchange is None or exchange.headers_ns is None:
            return  # an interim response
        self.exchange = None
        if self._parser.should_keep_alive() and not self._unsent:
            self.idle_since_ns = self._stamp
            exchange.end(self._stamp)
            if self.exchange is None:
                self._on_idle(self)
        else:
            self.close()
            exchange.end(self._stamp)
