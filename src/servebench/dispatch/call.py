"""One planned request on its way: what the plan wanted, what the wire saw, and the record that comes of it."""

from __future__ import annotations

import datetime
import email.utils
import re

import httpx

from servebench.record.columns import Outcome, RequestRecord
from servebench.wire.answer import Answer
from servebench.wire.exchange import Exchange
from servebench.wire.tokens import Chunks

_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]*)?")


class Call(Exchange):
    """An exchange that knows its row of the plan. Instants are CLOCK_REALTIME ns.

    Attributes:
        row: of the plan.
        slot: number of the closed loop's slot; −1 in an open loop.
        cohort: whether it is due inside the measured window.
        scheduled_ns, slot_ns, dispatched_ns: DESIGN §3.2.
        answer: what has been decoded so far.
        stopped: the run gave up waiting for it.
    """

    __slots__ = ("answer", "cohort", "dispatched_ns", "row", "scheduled_ns", "slot", "slot_ns", "stopped")

    def __init__(self, row: int, scheduled_ns: int, slot: int = -1, cohort: bool = False) -> None:
        super().__init__()
        self.row = row
        self.scheduled_ns = scheduled_ns
        self.slot = slot
        self.slot_ns: int | None = None
        self.dispatched_ns: int | None = None
        self.cohort = cohort
        self.answer: Answer | None = None
        self.stopped = False


def outcome_of(call: Call, answer: Answer, chunks: Chunks) -> tuple[Outcome, str | None]:
    """How the request ended, and one line on what went wrong (DESIGN §3.2)."""
    if call.stopped:
        return Outcome.IN_FLIGHT, "still in flight at the end of the drain"
    status = call.status
    if status is not None and not 200 <= status < 300:
        kind = Outcome.REJECTED if status in (429, 503) else Outcome.HTTP_ERROR
        return kind, _status_text(call, answer)
    if answer.error is not None:
        return Outcome.STREAM_ERROR, answer.error
    if call.error is not None and not answer.done:  # once all was said, it does not matter how the connection ended
        return _wire_failure(call)
    if answer.malformed is not None:
        return Outcome.PROTOCOL_ERROR, answer.malformed
    if not chunks.tokens.size:
        return Outcome.EMPTY, "the answer holds no token"
    if not answer.done and answer.finish_reason is None:
        return Outcome.TRUNCATED, "the stream ended without a finish reason or [DONE]"
    return Outcome.OK, None


def _wire_failure(call: Call) -> tuple[Outcome, str | None]:
    error = call.error
    text = str(error)
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        return Outcome.CONNECT_ERROR, text
    if isinstance(error, httpx.TimeoutException):
        return Outcome.TIMEOUT, text
    if isinstance(error, (httpx.ReadError, httpx.WriteError)):
        return Outcome.RESET, text
    if isinstance(error, httpx.RemoteProtocolError) and "closed the connection" in text:
        if call.headers_ns is None:
            return Outcome.RESET, text
        return Outcome.TRUNCATED, text
    return Outcome.PROTOCOL_ERROR, text


def _status_text(call: Call, answer: Answer) -> str:
    said = answer.error or answer.malformed or ""
    location = call.header(b"location")
    if location:
        said = f"redirects to {location.decode('latin-1').split('?')[0]}"
    return f"HTTP {call.status}" + (f": {said}" if said else "")


def retry_after(call: Call) -> float | None:
    """Seconds of the Retry-After field, a number or a date; None without a usable one."""
    value = call.header(b"retry-after")
    if value is None:
        return None
    text = value.decode("latin-1").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        when = email.utils.parsedate_to_datetime(text)
        return max(0.0, (when - datetime.datetime.now(when.tzinfo)).total_seconds())
    except (ValueError, TypeError, IndexError, OverflowError):  # what its parser raises on one or another odd text
        return None


def record_of(call: Call, worker: int, class_id: int, planned: tuple[int, int], chunks: Chunks) -> RequestRecord:
    """The row of requests.parquet; `planned` are the input and output tokens asked for."""
    answer = call.answer or Answer(stream=True)
    outcome, error = outcome_of(call, answer, chunks)
    total = chunks.total
    refused = call.status is None or not 200 <= call.status < 300  # then the body says why, and is no event
    return RequestRecord(
        index=call.row,
        worker=worker,
        class_id=class_id,
        scheduled_ns=call.scheduled_ns,
        outcome=outcome.value,
        input_planned=planned[0],
        output_planned=planned[1],
        slot_ns=call.slot_ns,
        dispatched_ns=call.dispatched_ns,
        connected_ns=call.connected_ns,
        sent_ns=call.sent_ns,
        headers_ns=call.headers_ns,
        first_event_ns=None if refused else answer.first_event_ns,
        first_token_ns=int(chunks.arrival_ns[0]) if total else None,
        first_visible_ns=chunks.first_visible_ns,
        last_token_ns=int(chunks.arrival_ns[-1]) if total else None,
        end_ns=answer.done_ns or call.end_ns,
        http_status=call.status,
        error=error,
        retry_after_s=retry_after(call),
        input_tokens=answer.input_tokens,
        output_tokens=answer.usage_tokens if answer.usage_tokens is not None else (total or None),
        cached_tokens=answer.cached_tokens,
        token_source=chunks.source,
        finish_reason=answer.finish_reason,
        chunks=int(chunks.tokens.size),
        first_chunk_tokens=int(chunks.tokens[0]) if total else 0,
        bytes_received=call.received,
        coalesced_reads=chunks.coalesced,
        kernel_stamps=call.user_stamped_reads == 0 if call.reads else None,
        connection=call.connection,
    )
