"""Odd streams, continued: the same tokens in every spelling that event streams and JSON allow, and in others."""

from __future__ import annotations

import json
from collections.abc import Iterator

from odd_streams import ANY, GAP, KNOWN, Row, plain, spaced, tail, texts

from servebench.testing import (
    DONE,
    Close,
    Events,
    Script,
    Send,
    Wait,
    byte_by_byte,
    head,
    split_at,
    sse,
    sse_response,
    usage,
)

CRLF = {"eol": "\r\n"}
WIDE = "é漢😀"  # two, three and four bytes
BIG = 5 << 20
PROTOCOL = {"outcome": "protocol_error", "finish": None, "end": ANY, "error": ""}


def _styled(**style: object) -> Script:
    def script(ev: Events) -> Script:
        return sse_response([*texts(ev, 3, **style), *tail(ev, usage(7, 3), **style)])

    return script


def _one_data_line_a_json_line(ev: Events) -> Script:
    events = (sse(json.dumps(ev.text(" w"), indent=1)) for _ in range(3))
    return sse_response([*spaced(events), *tail(ev, usage(7, 3))])


def _with_comments(ev: Events) -> Script:
    words = (b": ping\n\n: another\n" + sse(ev.text(" w")) for _ in range(3))
    return sse_response([*spaced(words), *tail(ev, usage(7, 3))])


def _pings(count: int, pause: float) -> Script:
    def script(ev: Events) -> Script:
        pings = [step for _ in range(count) for step in (Wait(pause), Send(b": ping\n\n"))]
        return sse_response([*texts(ev, 1), *pings, *texts(ev, 2, start=1), *tail(ev, usage(7, 3))])

    return script


def _raw_done(line: bytes) -> Script:
    def script(ev: Events) -> Script:
        return sse_response([*texts(ev, 3), *tail(ev, usage(7, 3), done=False), Send(line, "done")])

    return script


def _odd_events(*events: object) -> Script:
    """Events that say nothing, between the tokens."""

    def script(ev: Events) -> Script:
        odd = [Send(event if isinstance(event, bytes) else sse(event)) for event in events]
        words = texts(ev, 3)
        return sse_response([*words[:2], *odd, *words[2:], *tail(ev, usage(7, 3))])

    return script


def _odd_deltas(ev: Events) -> Script:
    return _odd_events(
        ev.delta(None),
        ev.delta({}),
        ev.delta({"content": None}),
        ev.delta({"content": None, "tool_calls": None, "reasoning_content": None, "function_call": None}),
        ev.chunk([{"index": 0}]),
        ev.chunk([{"index": 0, "finish_reason": None, "logprobs": None, "delta": {"role": None}}]),
    )(ev)


def _odd_chunks(ev: Events) -> Script:
    without = ev.chunk([])
    del without["choices"]
    return _odd_events(
        ev.chunk(None), ev.chunk([]), without, ev.chunk([], prompt_filter_results=[{"prompt_index": 0}]), ev.text(None)
    )(ev)


def _bom(ev: Events) -> Script:
    return sse_response([Send(b"\xef\xbb\xbf"), *texts(ev, 3), *tail(ev, usage(7, 3))])


def _separators(ev: Events) -> Script:
    text = " a\u2028b\u2029c\x85d\x0b\x0c"
    return sse_response([*spaced(sse(ev.text(text)) for _ in range(3)), *tail(ev, usage(7, 3))])


def _big(ev: Events) -> Script:
    big = [Wait(GAP), Send(sse(ev.text("x" * BIG)), "t1")]
    return sse_response([*texts(ev, 1), *big, Wait(1.0), *texts(ev, 1, start=2), *tail(ev, None)])


def _trickle(ev: Events) -> Script:
    body = sse(ev.text(WIDE), **CRLF)
    *data, end = byte_by_byte(body[: body.index(b"\r\n") + 1], label="t0")
    rest = byte_by_byte(body[body.index(b"\r\n") + 1 :])
    steps = [*data, end, *rest, *tail(ev, usage(7, 1), **CRLF)]
    return sse_response([Wait(GAP), *steps], framing="close")


def _split(at: int) -> Script:
    """The second event's bytes in two sends, cut `at` bytes after the start of its text.

    The event is complete with the read that ends its data line, so that is the send that is labelled.
    """

    def script(ev: Events) -> Script:
        body = sse(ev.text(WIDE), **CRLF)
        cut = body.index(WIDE.encode()) + at
        before, wait, after = split_at(body, cut, GAP)
        assert isinstance(before, Send)
        assert isinstance(after, Send)
        line_ends_before = cut > body.index(b"\r\n")
        pair = [
            Send(before.data, "t1" if line_ends_before else None),
            wait,
            Send(after.data, None if line_ends_before else "t1"),
        ]
        first, last = texts(ev, 1, **CRLF), texts(ev, 1, start=2, **CRLF)
        steps = [*first, Wait(GAP), *pair, *last, *tail(ev, usage(7, 3), **CRLF)]
        return sse_response(steps, framing="close")

    return script


def _split_rows() -> Iterator[Row]:
    """One cut inside and around each wide character, then one before, inside and after each line end."""
    for at in range(len(WIDE.encode()) + 1):
        yield Row(f"event cut {at} bytes into its wide text", _split(at), **KNOWN)
    for api in ("chat", "completions"):
        body = sse(Events(api).text(WIDE), **CRLF)  # type: ignore[arg-type]
        after_text = len(body) - body.index(WIDE.encode())
        for back in range(5):
            place = f"event cut {4 - back} bytes into its line ends"
            yield Row(place, _split(after_text - back), apis=(api,), **KNOWN)


def _not_utf_8(ev: Events) -> Script:
    events = (sse(ev.text(" ?")).replace(b"?", b"\xe6\xff") for _ in range(3))
    return sse_response([*spaced(events), *tail(ev, usage(7, 3))])


def _no_blank_line(ev: Events) -> Script:
    steps = [*texts(ev, 3), *tail(ev, usage(7, 3), done=False), Send(b"data: [DONE]\n", "done"), Wait(GAP), Close()]
    return [Send(head(200, {"content-type": "text/event-stream", "connection": "close"}), "head"), *steps]


def _broken_json(payload: bytes) -> Script:
    def script(ev: Events) -> Script:
        return sse_response([*texts(ev, 2), Wait(GAP), Send(payload, "bad"), Send(DONE, "done")])

    return script


def _joined(steps: Script) -> Send:
    return Send(b"".join(step.data for step in steps if isinstance(step, Send)), "tall")


BROKEN = {"chunks": "t0 t1", "tokens": 2, "source": "assumed"} | PROTOCOL

SSE_ROWS = [
    Row("CRLF line ends", _styled(**CRLF), **KNOWN),
    Row("CR line ends", _styled(eol="\r"), **KNOWN),
    Row(
        "CRLF line ends, two events a write",
        lambda ev: sse_response(
            [*spaced(sse(ev.text(" w"), **CRLF) * 2 for _ in range(2)), *tail(ev, usage(7, 4), **CRLF)]
        ),
        "t0*2 t1*2",
        coalesced=2,
        tokens=4,
        source="events",
    ),
    Row("no space after the colon", _styled(space=False), **KNOWN),
    Row("event lines", _styled(event="message"), **KNOWN),
    Row("event lines of another name", _styled(event="completion.chunk"), **KNOWN),
    Row("several data lines an event", _one_data_line_a_json_line, **KNOWN),
    Row(
        "id and retry lines, and unknown ones",
        _odd_events(b"id: 5\nretry: 1000\nnonsense\nmore: nonsense\n\n"),
        **KNOWN,
    ),
    Row("comments between the tokens", _with_comments, **KNOWN),
    Row("comments keep a slow stream alive", _pings(6, 0.15), limits={"idle": 0.5}, **KNOWN),
    Row("comments for 30 s", _pings(30, 1.0), limits={"idle": 10.0, "total": 90.0}, slow=True, **KNOWN),
    Row(
        "comments before the first token",
        lambda ev: sse_response([Send(b": ping\n\n", "ping"), *texts(ev, 3), *tail(ev, usage(7, 3))]),
        **KNOWN,
    ),
    Row("byte order mark", _bom, **KNOWN),
    Row("line separators of Unicode in the text", _separators, **KNOWN),
    Row("one event of 5 MB", _big, "t0 t1 t2", tokens=3, source="assumed", late_ns=900_000_000),
    Row("every byte in its own send", _trickle, "t0", tokens=1, source="events", first_event=ANY),
    *_split_rows(),
    Row("[DONE] without the space", _raw_done(b"data:[DONE]\n\n"), **KNOWN),
    Row("[DONE] with CRLF", _raw_done(b"data: [DONE]\r\n\r\n"), **KNOWN),
    Row("[DONE] without a blank line, then the end", _no_blank_line, **KNOWN),
    Row("deltas that are null, empty or missing", _odd_deltas, apis=("chat",), **KNOWN),
    Row("choices that are null, empty or missing", _odd_chunks, **KNOWN),
    Row("data lines without data", _odd_events(b"data:\n\n", b"data\n\n", b"\n\n\n"), **KNOWN),
    Row("JSON that is broken", _broken_json(b'data: {"choices": [\n\n'), **BROKEN),
    Row("JSON that is not an object", _broken_json(b"data: [1, 2]\n\n"), **BROKEN),
    Row("JSON of the wrong types", _broken_json(b'data: {"choices": 5}\n\n'), **BROKEN),
    Row("bytes that are no UTF-8, which stand for U+FFFD", _not_utf_8, **KNOWN),
    Row(
        "no tokens but a regular end",
        lambda ev: sse_response([Send(sse(ev.role()), "role"), *tail(ev, None)]),
        outcome="empty",
        first_event="role",
        error="",
    ),
    Row(
        "nothing but [DONE]",
        lambda _: sse_response([Send(DONE, "done")]),
        outcome="empty",
        finish=None,
        first_event="done",
        error="",
    ),
    Row(
        "whole answer in one write",
        lambda ev: [_joined(plain(ev))],
        "tall*3",
        coalesced=1,
        tokens=3,
        source="events",
        headers="tall",
        end="tall",
    ),
]
