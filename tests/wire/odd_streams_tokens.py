"""Odd streams: rows on tokens, their counts and instants, and on how a stream ends."""

from __future__ import annotations

from typing import Any

from odd_streams import ANY, GAP, KNOWN, Row, plain, spaced, tail, texts

from servebench.testing import DONE, Close, Events, Reset, Script, Send, Wait, error, sse, sse_response, usage


def _reasoning(ev: Events, key: str) -> Script:
    thoughts = spaced((sse(ev.reasoning(" hm", key=key)) for _ in range(3)), "r")
    return sse_response([*thoughts, *texts(ev, 2), *tail(ev, usage(7, 5))])


def _tools(ev: Events) -> Script:
    calls = [ev.tool_call("", name="add"), ev.tool_call('{"a":'), ev.tool_call("1}")]
    return sse_response([*spaced(map(sse, calls), "c"), *tail(ev, usage(7, 3))])


def _legacy_call(ev: Events) -> Script:
    calls = [
        ev.delta({"function_call": {"name": "f", "arguments": "{"}}),
        ev.delta({"function_call": {"arguments": "}"}}),
    ]
    return sse_response([*spaced(map(sse, calls), "c"), *tail(ev, usage(7, 2))])


def _late_usage(ev: Events) -> Script:
    late = [Wait(0.1), Send(sse(ev.usage(7, 3)), "usage"), Send(DONE, "done")]
    return sse_response([*texts(ev, 3), Wait(GAP), Send(sse(ev.finish())), *late])


def _late_end(ev: Events) -> Script:
    steps = sse_response([*texts(ev, 2), *tail(ev, usage(7, 2))])
    return [*steps[:-1], Wait(0.1), steps[-1]]


def _continuous(ev: Events, counts: list[int]) -> Script:
    events = (sse(ev.text(" w", usage=usage(7, count))) for count in counts)
    return sse_response([*spaced(events), *tail(ev, usage(7, counts[-1]))])


def _two_choices(ev: Events, *, together: bool) -> Script:
    def pair(text: str, finish: str | None = None) -> list[dict[str, Any]]:
        one, two = ev.text(text, finish=finish), ev.text(text, finish=finish, index=1)
        return [ev.chunk([*one["choices"], *two["choices"]])] if together else [one, two]

    words = [sse(event) for _ in range(2) for event in pair(" word")]
    ends = [Send(sse(event)) for event in pair("", "stop")]
    return sse_response([*spaced(words), Wait(GAP), *ends, *tail(ev, usage(7, 4), finish=False)])


def _second_choice_first(ev: Events) -> Script:
    ends = [Send(sse(ev.text("", finish="stop", index=1))), Send(sse(ev.text("", finish="stop", index=0)))]
    words = spaced([sse(ev.text(" a", index=1)), sse(ev.text(" b", index=0))])
    return sse_response([*words, Wait(GAP), *ends, *tail(ev, usage(7, 2), finish=False)])


def _fails(ev: Events, event: bytes, count: int = 3) -> Script:
    return sse_response([*texts(ev, count), Wait(GAP), Send(event, "error"), Send(DONE, "done")])


FAILED = {"outcome": "stream_error", "finish": None, "error": "out of memory"}

TOKEN_ROWS = [
    Row("plain", plain, **KNOWN),
    Row(
        "three tokens an event",
        lambda ev: sse_response([*spaced(sse(ev.text(" a b c")) for _ in range(4)), *tail(ev, usage(7, 12))]),
        tokens=12,
        source="usage_share",
        chunks="t0*3 t1*3 t2*3 t3*3",
    ),
    Row(
        "usage shared by text length",
        lambda ev: sse_response([*spaced(sse(ev.text("x" * n)) for n in (30, 10, 20)), *tail(ev, usage(7, 12))]),
        tokens=12,
        source="usage_share",
        chunks="t0*6 t1*2 t2*4",
    ),
    Row(
        "four events a write",
        lambda ev: sse_response([*spaced(sse(ev.text(" w")) * 4 for _ in range(2)), *tail(ev, usage(7, 8))]),
        tokens=8,
        source="events",
        chunks="t0*4 t1*4",
        coalesced=2,
    ),
    Row(
        "reasoning first",
        lambda ev: _reasoning(ev, "reasoning_content"),
        "r0 r1 r2 t0 t1",
        tokens=5,
        source="events",
        apis=("chat",),
    ),
    Row(
        "reasoning by its other name",
        lambda ev: _reasoning(ev, "reasoning"),
        "r0 r1 r2 t0 t1",
        tokens=5,
        source="events",
        apis=("chat",),
    ),
    Row("tool calls only", _tools, "c0 c1 c2", tokens=3, source="events", apis=("chat",)),
    Row("legacy function call", _legacy_call, "c0 c1", tokens=2, source="events", apis=("chat",)),
    Row(
        "empty texts with token ids",
        lambda ev: sse_response(
            [*spaced(sse(ev.token_ids("" if n < 2 else " w", [n + 5])) for n in range(4)), *tail(ev, usage(7, 4))]
        ),
        tokens=4,
        source="token_ids",
        first_visible="t2",
        chunks="t0 t1 t2 t3",
    ),
    Row(
        "several token ids an event",
        lambda ev: sse_response([*spaced(sse(ev.token_ids(" w", [5] * n)) for n in (1, 3, 2)), *tail(ev, usage(7, 6))]),
        tokens=6,
        source="token_ids",
        chunks="t0 t1*3 t2*2",
    ),
    Row(
        "empty texts that usage counts as tokens",
        lambda ev: sse_response(
            [*spaced(sse(ev.text("" if n < 2 else " w")) for n in range(4)), *tail(ev, usage(7, 4), finish=False)]
        ),
        tokens=4,
        source="events",
        finish=None,
        first_visible="t2",
        chunks="t0 t1 t2 t3",
    ),
    Row(
        "empty finishing event that usage counts as a token",
        lambda ev: sse_response(
            [
                *texts(ev, 2),
                Wait(GAP),
                Send(sse(ev.text("", finish="stop")), "t2"),
                *tail(ev, usage(7, 3), finish=False),
            ]
        ),
        **KNOWN,
    ),
    Row(
        "empty text without a count",
        lambda ev: sse_response([Send(sse(ev.text("")), "early"), *texts(ev, 2), *tail(ev, None)]),
        tokens=2,
        source="assumed",
        first_event="early",
        chunks="t0 t1",
    ),
    Row(
        "role long before the first token",
        lambda ev: sse_response([Send(sse(ev.role()), "role"), Wait(0.1), *texts(ev, 3), *tail(ev, usage(7, 3))]),
        first_event="role",
        **KNOWN,
    ),
    Row(
        "role repeated in every delta",
        lambda ev: sse_response(
            [*spaced(sse(ev.delta({"role": "assistant", "content": " w"})) for _ in range(3)), *tail(ev, usage(7, 3))]
        ),
        apis=("chat",),
        **KNOWN,
    ),
    Row("usage long after the last token", _late_usage, **KNOWN),
    Row("body ends long after [DONE]", _late_end, "t0 t1", tokens=2, source="events"),
    Row("no usage", lambda ev: sse_response([*texts(ev, 3), *tail(ev, None)]), "t0 t1 t2", tokens=3, source="assumed"),
    Row(
        "no usage, no [DONE]",
        lambda ev: sse_response([*texts(ev, 3), *tail(ev, None, done=False)]),
        "t0 t1 t2",
        tokens=3,
        source="assumed",
        end="end",
    ),
    Row(
        "no finish reason but [DONE]",
        lambda ev: sse_response([*texts(ev, 3), *tail(ev, usage(7, 3), finish=False)]),
        finish=None,
        **KNOWN,
    ),
    Row(
        "usage in every chunk",
        lambda ev: _continuous(ev, [1, 2, 3]),
        "t0 t1 t2",
        tokens=3,
        source="chunk_usage",
        prompt=7,
    ),
    Row(
        "usage in every chunk, uneven",
        lambda ev: _continuous(ev, [2, 3, 7]),
        "t0*2 t1 t2*4",
        tokens=7,
        source="chunk_usage",
    ),
    Row(
        "usage with the last text",
        lambda ev: sse_response(
            [
                *texts(ev, 2),
                *spaced([sse(ev.text(" w", finish="stop", usage=usage(7, 3)))], start=2),
                *tail(ev, None, finish=False),
            ]
        ),
        **KNOWN,
    ),
    Row(
        "usage with the finish reason",
        lambda ev: sse_response(
            [*texts(ev, 3), Wait(GAP), Send(sse(ev.finish() | {"usage": usage(7, 3)})), Send(DONE, "done")]
        ),
        **KNOWN,
    ),
    Row(
        "usage null in every chunk",
        lambda ev: sse_response([*spaced(sse(ev.text(" w", usage=None)) for _ in range(3)), *tail(ev, usage(7, 3))]),
        **KNOWN,
    ),
    Row(
        "usage with cached tokens",
        lambda ev: sse_response([*texts(ev, 3), *tail(ev, usage(7, 3, cached=4))]),
        cached=4,
        **KNOWN,
    ),
    Row(
        "usage that is null at the end",
        lambda ev: sse_response(
            [*texts(ev, 2), Wait(GAP), Send(sse(ev.finish() | {"usage": None})), Send(DONE, "done")]
        ),
        "t0 t1",
        tokens=2,
        source="assumed",
    ),
    Row("one token", lambda ev: plain(ev, 1), "t0", tokens=1, source="events"),
    Row(
        "finish reason length",
        lambda ev: sse_response(
            [
                *texts(ev, 1),
                *spaced([sse(ev.text(" w", finish="length"))], start=1),
                *tail(ev, usage(7, 2), finish=False),
            ]
        ),
        "t0 t1",
        tokens=2,
        source="events",
        finish="length",
    ),
    Row("two choices in turn", lambda ev: _two_choices(ev, together=False), "t0 t1 t2 t3", tokens=4, source="events"),
    Row(
        "two choices in one event",
        lambda ev: _two_choices(ev, together=True),
        "t0*2 t1*2",
        tokens=4,
        source="usage_share",
    ),
    Row("second choice comes first", _second_choice_first, "t0 t1", tokens=2, source="events"),
    Row(
        "error object in mid-stream",
        lambda ev: _fails(ev, sse(error("out of memory"))),
        "t0 t1 t2",
        tokens=3,
        source="assumed",
        **FAILED,
    ),
    Row(
        "error event in mid-stream",
        lambda ev: _fails(ev, sse({"message": "out of memory"}, event="error")),
        "t0 t1 t2",
        tokens=3,
        source="assumed",
        **FAILED,
    ),
    Row(
        "error object of another form",
        lambda ev: _fails(ev, sse({"object": "error", "message": "out of memory", "code": 500})),
        "t0 t1 t2",
        tokens=3,
        source="assumed",
        **FAILED,
    ),
    Row(
        "error that is only a text",
        lambda ev: _fails(ev, sse({"error": "out of memory"})),
        "t0 t1 t2",
        tokens=3,
        source="assumed",
        **FAILED,
    ),
    Row(
        "error beside choices",
        lambda ev: _fails(ev, sse(ev.text("", finish="error") | error("out of memory"))),
        "t0 t1 t2",
        tokens=3,
        source="assumed",
        **FAILED | {"finish": "error"},
    ),
    Row(
        "error before the first token",
        lambda ev: _fails(ev, sse(error("out of memory")), 0),
        first_event="error",
        **FAILED,
    ),
    Row(
        "error after the finish reason",
        lambda ev: sse_response(
            [*texts(ev, 1), Wait(GAP), Send(sse(ev.finish())), Send(sse(error("out of memory"))), Send(DONE, "done")]
        ),
        "t0",
        tokens=1,
        source="assumed",
        **{**FAILED, "finish": "stop"},
    ),
    Row(
        "error field that is null",
        lambda ev: sse_response([*spaced(sse(ev.text(" w", error=None)) for _ in range(3)), *tail(ev, usage(7, 3))]),
        **KNOWN,
    ),
    Row(
        "clean end without finish, usage or [DONE]",
        lambda ev: sse_response(texts(ev, 3)),
        "t0 t1 t2",
        outcome="truncated",
        tokens=3,
        source="assumed",
        finish=None,
        end="end",
        error="finish",
    ),
    Row(
        "reset in mid-stream",
        lambda ev: sse_response([*texts(ev, 3), Wait(GAP), Reset()]),
        "t0 t1 t2",
        outcome="reset",
        tokens=3,
        source="assumed",
        finish=None,
        end=ANY,
        error="",
    ),
    Row(
        "closed in mid-stream, inside a chunked body",
        lambda ev: sse_response([*texts(ev, 3), Wait(GAP), Close()]),
        "t0 t1 t2",
        outcome="truncated",
        tokens=3,
        source="assumed",
        finish=None,
        end=ANY,
        error="",
    ),
    Row(
        "text after [DONE]",
        lambda ev: sse_response([*texts(ev, 3), *tail(ev, usage(7, 3)), *texts(ev, 1, start=9)]),
        **KNOWN,
    ),
    Row(
        "text after [DONE] in the same write",
        lambda ev: sse_response([*texts(ev, 3), *tail(ev, None, done=False), Send(DONE + sse(ev.text(" w")), "done")]),
        **KNOWN | {"source": "assumed", "prompt": None},
    ),
    Row(
        "closed after [DONE], before the last chunk",
        lambda ev: sse_response([*texts(ev, 3), *tail(ev, usage(7, 3)), Close()]),
        **KNOWN,
    ),
]
