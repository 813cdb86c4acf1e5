"""Odd streams, continued: what HTTP does around the events, refusals, and connections that fail."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from odd_streams import ANY, GAP, KNOWN, Row, plain, tail, texts

from servebench.testing import (
    Close,
    Events,
    Hang,
    ReadRequest,
    Reset,
    Script,
    Send,
    Step,
    Wait,
    error,
    head,
    json_response,
    response,
    sse,
    sse_response,
    usage,
)

HTML = b"<html><body><h1>Bad gateway</h1></body></html>"
SSE_HEAD = head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})


def _http_10(ev: Events) -> Script:
    return plain(ev, framing="close", version="HTTP/1.0")


def _gzipped(ev: Events, *, flush: int) -> Script:
    """The body compressed in one stream; `flush` says whether each event can be read when its bytes are there."""
    squeeze = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    steps: list[Step] = []
    for step in [*texts(ev, 3), *tail(ev, usage(7, 3))]:
        if isinstance(step, Send):
            data = squeeze.compress(step.data) + squeeze.flush(flush)
            steps += [Send(data, step.label)] if data else []
        else:
            steps.append(step)
    steps.append(Send(squeeze.flush(), "tall"))
    return sse_response(steps, headers={"content-encoding": "gzip"})


def _interim(*statuses: int) -> Callable[[Events], Script]:
    def script(ev: Events) -> Script:
        before = [
            Send(head(status, {"link": "</x>"} if status == 103 else {}), f"interim {status}") for status in statuses
        ]
        return [*before, Wait(GAP), *plain(ev)]

    return script


def _refusal(status: int, body: Any = None, headers: Mapping[str, str] | None = None) -> Callable[[Events], Script]:
    content = error("slow down", code=status) if body is None else body
    if isinstance(content, bytes):
        return lambda _: response(status, content, {"content-type": "text/html", **(headers or {})})
    return lambda _: json_response(status, content, headers)


def _refused(
    row: str, status: int, outcome: str, text: str = "slow down", retry: float | None = None, **make: Any
) -> Row:
    return Row(
        row,
        _refusal(status, **make),
        outcome=outcome,
        status=status,
        error=text,
        retry_after=retry,
        finish=None,
        first_event=None,
        headers="response",
        end="response",
    )


def _whole(ev: Events, counts: dict[str, Any] | None, text: str = " a b c") -> Script:
    return [Wait(GAP), *_labelled(json_response(200, ev.whole(text, counts)), "t")]


def _labelled(steps: list[Step], label: str) -> list[Step]:
    return [Send(step.data, label) if isinstance(step, Send) else step for step in steps]


def _gzipped_whole(ev: Events) -> Script:
    import json

    body = gzip.compress(json.dumps(ev.whole(" a b c", usage(7, 3))).encode())
    fields = {"content-type": "application/json", "content-encoding": "gzip"}
    return [Wait(GAP), *_labelled(response(200, body, fields), "t")]


NOTHING: dict[str, Any] = {"finish": None, "first_event": None, "end": ANY, "error": ""}
NO_ANSWER: dict[str, Any] = NOTHING | {"headers": None, "status": None}
PARTIAL: dict[str, Any] = {"tokens": 2, "source": "assumed", "chunks": "t0 t1", "finish": None, "end": ANY, "error": ""}
WHOLE: dict[str, Any] = {"stream": False, "chunks": "t*3", "headers": "t", "end": "t", "tokens": 3, "prompt": 7}

HTTP_ROWS = [
    Row("HTTP/1.0 body, delimited by the close", _http_10, **KNOWN),
    Row("HTTP/1.1 body, delimited by the close", lambda ev: plain(ev, framing="close"), **KNOWN),
    Row("body with a Content-Length", lambda ev: plain(ev, framing="length"), **KNOWN),
    Row("chunk extensions", lambda ev: plain(ev, extension=';a=b;c="d e"'), **KNOWN),
    Row("trailers", lambda ev: plain(ev, trailers={"x-checksum": "1", "server-timing": "total;dur=5"}), **KNOWN),
    Row("connection: close", lambda ev: [*plain(ev, headers={"connection": "close"}), Close()], **KNOWN),
    Row(
        "content type in capitals",
        lambda ev: plain(ev, headers={"content-type": "Text/Event-Stream;Charset=UTF-8"}),
        **KNOWN,
    ),
    Row("events under a wrong content type", lambda ev: plain(ev, headers={"content-type": "text/plain"}), **KNOWN),
    Row("gzip, flushed with each event", lambda ev: _gzipped(ev, flush=zlib.Z_SYNC_FLUSH), **KNOWN),
    Row(
        "gzip, flushed at the end",
        lambda ev: _gzipped(ev, flush=zlib.Z_NO_FLUSH),
        "tall*3",
        coalesced=1,
        tokens=3,
        source="events",
        end="tall",
    ),
    Row("interim 100", _interim(100), **KNOWN),
    Row("interim 103, 103 and 100", _interim(103, 103, 100), **KNOWN),
    _refused(
        "redirect to another host",
        307,
        "http_error",
        "example.invalid",
        headers={"location": "http://example.invalid/v1"},
    ),
    _refused("redirect to another place", 301, "http_error", "/elsewhere", headers={"location": "/elsewhere"}),
    _refused("400", 400, "http_error"),
    _refused(
        "401 with a JSON body", 401, "http_error", "wrong key", body=error("wrong key", "invalid_request_error", "k")
    ),
    _refused("404 in another form", 404, "http_error", "no such model", body={"detail": "no such model"}),
    _refused("429 with seconds", 429, "rejected", retry=1.0, headers={"retry-after": "1"}),
    _refused("429 with a fraction", 429, "rejected", retry=0.25, headers={"retry-after": "0.25"}),
    _refused(
        "429 with a date that has passed",
        429,
        "rejected",
        retry=0.0,
        headers={"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"},
    ),
    _refused("429 with nonsense", 429, "rejected", headers={"retry-after": "soon"}),
    _refused("429 without a word", 429, "rejected", "429", body=b""),
    _refused("500", 500, "http_error"),
    _refused("502 with HTML from a proxy", 502, "http_error", "502", body=HTML),
    _refused("503", 503, "rejected", retry=2.0, headers={"retry-after": "2"}),
    _refused("503 with HTML from a proxy", 503, "rejected", "503", body=HTML),
    Row(
        "HTML from a proxy",
        _refusal(200, HTML),
        outcome="protocol_error",
        headers="response",
        **NOTHING | {"error": "html"},
    ),
    Row(
        "empty 200",
        lambda _: response(200, b"", {"content-type": "text/event-stream"}),
        outcome="empty",
        headers="response",
        **NOTHING,
    ),
    Row("empty 200, chunked", lambda _: sse_response([]), outcome="empty", **NOTHING),
    Row("empty 200, closed", lambda _: sse_response([], framing="close"), outcome="empty", **NOTHING),
    Row(
        "204", lambda _: [Send(head(204), "response")], outcome="empty", headers="response", **NOTHING | {"status": 204}
    ),
    Row("not HTTP", lambda _: [Send(b"220 mail.example ESMTP\r\n"), Close()], outcome="protocol_error", **NO_ANSWER),
    Row(
        "reset before the request is read", lambda _: [Wait(GAP), Reset(), ReadRequest()], outcome="reset", **NO_ANSWER
    ),
    Row("reset before the headers", lambda _: [Wait(GAP), Reset()], outcome="reset", **NO_ANSWER),
    Row("closed before the headers", lambda _: [Wait(GAP), Close()], outcome="reset", **NO_ANSWER),
    Row("reset inside the headers", lambda _: [Send(SSE_HEAD[:40]), Wait(GAP), Reset()], outcome="reset", **NO_ANSWER),
    Row("reset after the headers", lambda _: [Send(SSE_HEAD, "head"), Wait(GAP), Reset()], outcome="reset", **NOTHING),
    Row(
        "closed after the headers",
        lambda _: [Send(SSE_HEAD, "head"), Wait(GAP), Close()],
        outcome="truncated",
        **NOTHING,
    ),
    Row("hang before the headers", lambda _: [Hang()], outcome="timeout", limits={"idle": 0.3}, **NO_ANSWER),
    Row(
        "hang inside the headers",
        lambda _: [Send(SSE_HEAD[:40]), Hang()],
        outcome="timeout",
        limits={"idle": 0.3},
        **NO_ANSWER,
    ),
    Row("hang after the headers", lambda _: sse_response([Hang()]), outcome="timeout", limits={"idle": 0.3}, **NOTHING),
    Row(
        "hang in mid-stream",
        lambda ev: sse_response([*texts(ev, 2), Hang()]),
        outcome="timeout",
        limits={"idle": 0.3},
        **PARTIAL,
    ),
    Row(
        "hang in mid-event",
        lambda ev: sse_response([*texts(ev, 2), Wait(GAP), Send(sse(ev.text(" w"))[:30]), Hang()]),
        outcome="timeout",
        limits={"idle": 0.3},
        **PARTIAL,
    ),
    Row(
        "hang after the finish reason",
        lambda ev: sse_response([*texts(ev, 2), *tail(ev, None, done=False), Hang()]),
        outcome="timeout",
        limits={"idle": 0.3},
        **PARTIAL | {"finish": "stop"},
    ),
    Row(
        "hang after [DONE]",
        lambda ev: sse_response([*texts(ev, 3), *tail(ev, usage(7, 3)), Hang()]),
        limits={"idle": 0.3},
        **KNOWN,
    ),
    Row(
        "comments without end",
        lambda ev: sse_response([*texts(ev, 2), *[s for _ in range(40) for s in (Wait(0.05), Send(b": ping\n\n"))]]),
        outcome="timeout",
        limits={"total": 0.5},
        **PARTIAL,
    ),
    Row(
        "reset after [DONE]",
        lambda ev: sse_response([*texts(ev, 3), *tail(ev, usage(7, 3)), Wait(GAP), Reset()]),
        **KNOWN,
    ),
    Row(
        "broken chunk size in mid-stream",
        lambda ev: [*sse_response([*texts(ev, 2), Wait(GAP)])[:-1], Send(b"zz\r\n"), Close()],
        outcome="protocol_error",
        **PARTIAL,
    ),
    Row("whole answer", lambda ev: _whole(ev, usage(7, 3)), source="usage_share", **WHOLE),
    Row("whole answer in gzip", _gzipped_whole, source="usage_share", **WHOLE),
    Row(
        "whole answer without usage",
        lambda ev: _whole(ev, None),
        **WHOLE | {"tokens": 1, "chunks": "t", "prompt": None, "source": "assumed"},
    ),
    Row(
        "whole answer without text",
        lambda ev: _whole(ev, usage(7, 0), ""),
        tokens=0,
        outcome="empty",
        stream=False,
        headers="t",
        first_event="t",
        end="t",
        prompt=7,
        error="",
    ),
    Row(
        "whole answer that is an error",
        lambda _: [Wait(GAP), *json_response(200, error("out of memory"))],
        outcome="stream_error",
        stream=False,
        headers="response",
        end="response",
        first_event="response",
        finish=None,
        error="out of memory",
    ),
    Row(
        "whole answer that is broken",
        lambda _: response(200, b'{"choices": [', {"content-type": "application/json"}),
        outcome="protocol_error",
        stream=False,
        headers="response",
        **NOTHING,
    ),
    Row(
        "whole answer where a stream was asked for",
        lambda ev: _whole(ev, usage(7, 3)),
        source="usage_share",
        **WHOLE | {"stream": True},
    ),
    Row(
        "error object with status 200 where a stream was asked for",
        lambda _: json_response(200, error("out of memory")),
        outcome="stream_error",
        headers="response",
        end="response",
        first_event="response",
        finish=None,
        error="out of memory",
    ),
]
