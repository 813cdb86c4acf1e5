"""How a request ended, from what the wire saw: each outcome, and the Retry-After in each of its forms."""

from __future__ import annotations

import datetime
import email.utils

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.dispatch.call import Call, outcome_of, record_of, retry_after
from servebench.record.columns import Outcome
from servebench.testing import DONE, Events, error, sse, usage
from servebench.wire.answer import Answer

EVENTS = Events("chat")
TOKENS = [sse(EVENTS.text("a")), sse(EVENTS.text("b"))]
FINISH = sse(EVENTS.finish("stop"))
CLOSED_BEFORE = "the server closed the connection before it answered"
CLOSED_INSIDE = "the server closed the connection inside the body"


def ended(
    parts: list[bytes],
    status: int | None = 200,
    problem: httpx.TransportError | None = None,
    headers: list[tuple[bytes, bytes]] | None = None,
    stopped: bool = False,
) -> tuple[Call, Answer]:
    """A call whose body came in these parts, one a millisecond from instant 1,000,000 on."""
    call = Call(7, 100)
    call.status, call.headers, call.stopped = status, headers or [], stopped
    call.headers_ns = None if status is None else 900_000
    call.received = sum(map(len, parts))
    answer = Answer(stream=True)
    stamps = [1_000_000 * (number + 1) for number in range(len(parts))]
    answer.feed(parts, stamps)
    call.end(stamps[-1] if stamps else 950_000, problem)
    return call, answer


@pytest.mark.parametrize(
    ("parts", "more", "outcome", "text"),
    [
        ([*TOKENS, FINISH, DONE], {}, "ok", None),
        ([*TOKENS, DONE], {}, "ok", None),
        ([*TOKENS, FINISH], {}, "ok", None),
        (TOKENS, {}, "truncated", "without a finish reason"),
        ([FINISH, DONE], {}, "empty", "no token"),
        ([], {}, "empty", "no token"),
        ([*TOKENS, b"data: {oops}\n\n", DONE], {}, "protocol_error", "neither events nor JSON"),
        ([TOKENS[0], sse(error("out of memory"))], {}, "stream_error", "out of memory"),
        ([b'{"error": {"message": "no"}}'], {"status": 400}, "http_error", "HTTP 400: no"),
        ([b'{"error": {"message": "slow down"}}'], {"status": 429}, "rejected", "HTTP 429: slow down"),
        ([], {"status": 503}, "rejected", "HTTP 503"),
        ([], {"status": 302, "headers": [(b"location", b"/x?key=1")]}, "http_error", "HTTP 302: redirects to /x"),
        ([], {"status": None, "problem": httpx.ConnectError("refused")}, "connect_error", "refused"),
        ([], {"status": None, "problem": httpx.ConnectTimeout("no connection")}, "connect_error", "no connection"),
        ([], {"status": None, "problem": httpx.ReadTimeout("no byte")}, "timeout", "no byte"),
        (TOKENS, {"problem": httpx.ReadTimeout("no byte")}, "timeout", "no byte"),
        (TOKENS, {"problem": httpx.ReadError("ECONNRESET")}, "reset", "ECONNRESET"),
        ([], {"status": None, "problem": httpx.WriteError("EPIPE")}, "reset", "EPIPE"),
        ([], {"status": None, "problem": httpx.RemoteProtocolError(CLOSED_BEFORE)}, "reset", "before it answered"),
        (TOKENS, {"problem": httpx.RemoteProtocolError(CLOSED_INSIDE)}, "truncated", "inside the body"),
        (TOKENS, {"problem": httpx.RemoteProtocolError("not HTTP/1.1: x")}, "protocol_error", "not HTTP"),
        ([*TOKENS, FINISH, DONE], {"problem": httpx.ReadError("ECONNRESET")}, "ok", None),
        (TOKENS, {"stopped": True, "problem": httpx.ReadTimeout("given up")}, "in_flight", "end of the drain"),
        ([], {"stopped": True, "status": None, "problem": httpx.ReadTimeout("given up")}, "in_flight", "drain"),
    ],
)  # fmt: skip
def test_outcome(parts: list[bytes], more: dict[str, object], outcome: str, text: str | None) -> None:
    call, answer = ended(parts, **more)  # type: ignore[arg-type]
    got, said = outcome_of(call, answer, answer.finish())
    assert got == outcome
    assert (said is None) if text is None else (said is not None and text in said)


def test_every_outcome_of_a_sent_request_is_in_the_table_above() -> None:
    mark = next(mark for mark in test_outcome.pytestmark if mark.name == "parametrize")
    assert {row[2] for row in mark.args[1]} == set(Outcome) - {Outcome.DROPPED, Outcome.CANCELLED}


def test_partial_timings_are_kept() -> None:
    call, answer = ended(TOKENS, problem=httpx.ReadError("ECONNRESET"))
    call.answer = answer
    record = record_of(call, 3, 1, (20, 10), answer.finish())
    assert (record.outcome, record.worker, record.class_id) == ("reset", 3, 1)
    assert (record.input_planned, record.output_planned) == (20, 10)
    assert (record.first_token_ns, record.last_token_ns, record.end_ns) == (1_000_000, 2_000_000, 2_000_000)
    assert (record.chunks, record.output_tokens, record.input_tokens) == (2, 2, None)


def test_what_never_happened_is_none_and_not_zero() -> None:
    call, answer = ended([], status=None, problem=httpx.ConnectError("refused"))
    record = record_of(call, 0, 0, (20, 10), answer.finish())
    instants = ("sent_ns", "headers_ns", "first_event_ns", "first_token_ns", "last_token_ns")
    counts = ("input_tokens", "output_tokens", "token_source")
    unset = (*instants, *counts, "http_status", "finish_reason", "kernel_stamps", "connection")
    assert {name: getattr(record, name) for name in unset} == dict.fromkeys(unset)
    assert record.end_ns == 950_000


def test_an_error_body_is_no_event() -> None:
    call, answer = ended([b'{"error": {"message": "no"}}'], status=500)
    call.answer = answer
    record = record_of(call, 0, 0, (20, 10), answer.finish())
    assert (record.first_event_ns, record.http_status) == (None, 500)


def test_the_end_is_done_and_not_what_comes_after_it() -> None:
    call, answer = ended([*TOKENS, FINISH, sse(EVENTS.chunk([], usage=usage(20, 2))), DONE, b": ping\n\n"])
    call.answer = answer
    record = record_of(call, 0, 0, (20, 10), answer.finish())
    assert (record.end_ns, call.end_ns) == (5_000_000, 6_000_000)


def asked(value: bytes | None) -> float | None:
    return retry_after(ended([], headers=[] if value is None else [(b"retry-after", value)])[0])


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), (b"3", 3.0), (b" 2.5 ", 2.5), (b"0", 0.0), (b"", None), (b"soon", None), (b"-1", None),
     (b"\xb2", None), (b"1e999", None), (b"nan", None), (b"1.2.3", None), (b"Wed, 01 Jan 2020 00:00:00 GMT", 0.0),
     (b"Mon, 01 Jan 99999 00:00:00 GMT", None), (b"Mon, 01 Jan 2035 00:00:00 +9999", None)],
)  # fmt: skip
def test_retry_after(value: bytes | None, seconds: float | None) -> None:
    assert asked(value) == seconds


def test_retry_after_as_a_date() -> None:
    when = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=30)
    seconds = asked(email.utils.format_datetime(when, usegmt=True).encode())
    assert seconds is not None
    assert 25 < seconds <= 30


@given(st.binary(max_size=40))
def test_no_retry_after_is_an_error(value: bytes) -> None:
    seconds = asked(value)
    assert seconds is None or seconds >= 0
