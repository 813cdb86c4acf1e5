"""HTTP responses as scripts: headers, framing and bodies, right and odd ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Literal

from servebench.testing.events import sse
from servebench.testing.script import Close, HalfClose, Hang, Reset, Send, Step

Framing = Literal["chunked", "length", "close"]
Item = Step | bytes | dict[str, Any]


def head(
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    *,
    version: str = "HTTP/1.1",
    reason: str | None = None,
) -> bytes:
    """A status line and headers, up to and including the empty line."""
    phrase = reason if reason is not None else HTTPStatus(status).phrase
    lines = [f"{version} {status} {phrase}", *(f"{name}: {value}" for name, value in (headers or {}).items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes, extension: str = "") -> bytes:
    """One chunk of a chunked body; `extension` follows the size (`;name=value`)."""
    return b"%x%s\r\n%s\r\n" % (len(data), extension.encode(), data)


def response(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> list[Step]:
    """A whole response with a Content-Length, in one send labelled `response`."""
    return [Send(head(status, {"content-length": str(len(body)), **(headers or {})}) + body, "response")]


def json_response(status: int, body: Any, headers: Mapping[str, str] | None = None) -> list[Step]:
    """A whole JSON response with a Content-Length, in one send labelled `response`."""
    return response(status, json.dumps(body).encode(), {"content-type": "application/json", **(headers or {})})


def sse_response(
    items: Iterable[Item],
    *,
    framing: Framing = "chunked",
    headers: Mapping[str, str] | None = None,
    version: str = "HTTP/1.1",
    extension: str = "",
    trailers: Mapping[str, str] | None = None,
) -> list[Step]:
    """A `text/event-stream` response. The head is sent first, labelled `head`, then each item in its own send.

    Args:
        items: an object is encoded as an event, bytes (or `Send`, to label them) are framed as they are, other steps
            played as they are. A stream that a `Close`, `Reset` or `Hang` breaks off gets no regular end.
        framing: `chunked`, each item a chunk; `length`, with a Content-Length; `close`, the body ends with the
            connection.
        headers: added to, or in place of, the usual ones.
        version: of the protocol, as in the status line.
        extension: of each chunk.
        trailers: sent after the last chunk.
    """
    sends = [_step(item) for item in items]
    fields = {"content-type": "text/event-stream; charset=utf-8", **_framing_headers(framing, sends), **(headers or {})}
    body = [_framed(step, extension) if framing == "chunked" else step for step in sends]
    broken = any(isinstance(step, Close | HalfClose | Hang | Reset) for step in sends)
    end = [] if broken else _end(framing, trailers)
    return [Send(head(200, fields, version=version), "head"), *body, *end]


def _step(item: Item) -> Step:
    if isinstance(item, dict):
        return Send(sse(item))
    return Send(item) if isinstance(item, bytes) else item


def _framing_headers(framing: Framing, steps: list[Step]) -> dict[str, str]:
    if framing == "chunked":
        return {"transfer-encoding": "chunked"}
    if framing == "length":
        return {"content-length": str(sum(len(step.data) for step in steps if isinstance(step, Send)))}
    return {"connection": "close"}


def _framed(step: Step, extension: str) -> Step:
    return Send(chunk(step.data, extension), step.label) if isinstance(step, Send) else step


def _end(framing: Framing, trailers: Mapping[str, str] | None) -> list[Step]:
    if framing == "length":
        return []
    if framing == "close":
        return [Close()]
    lines = "".join(f"{name}: {value}\r\n" for name, value in (trailers or {}).items())
    return [Send(f"0\r\n{lines}\r\n".encode(), "end")]
