"""What is recorded of a request and of each received chunk: the columns, their types and their words."""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec
import pyarrow as pa


class Outcome(StrEnum):
    """How a request ended; exactly one for each planned request."""

    OK = "ok"
    HTTP_ERROR = "http_error"
    REJECTED = "rejected"
    STREAM_ERROR = "stream_error"
    TRUNCATED = "truncated"
    RESET = "reset"
    CONNECT_ERROR = "connect_error"
    TIMEOUT = "timeout"
    EMPTY = "empty"
    PROTOCOL_ERROR = "protocol_error"
    CANCELLED = "cancelled"
    IN_FLIGHT = "in_flight"
    DROPPED = "dropped"


FAILURES = tuple(o for o in Outcome if o not in (Outcome.OK, Outcome.IN_FLIGHT, Outcome.DROPPED))


class TokenSource(StrEnum):
    """Where a request's tokens-per-chunk come from, best first."""

    CHUNK_USAGE = "chunk_usage"
    TOKEN_IDS = "token_ids"
    EVENTS = "events"
    USAGE_SHARE = "usage_share"
    TOKENIZER = "tokenizer"
    ASSUMED = "assumed"


class Channel(IntEnum):
    """Which kind of output a chunk carries (the first one, when several share a read)."""

    CONTENT = 0
    REASONING = 1
    TOOL = 2


class RequestRecord(msgspec.Struct, gc=False, kw_only=True):
    """One row of requests.parquet. Instants are CLOCK_REALTIME ns; None where the event did not happen.

    Attributes:
        index: row of the plan.
        worker: number of the worker process.
        class_id: traffic class, index into the plan's class names.
        scheduled_ns: due time (open loop), or when the slot came free (closed loop).
        slot_ns: when a slot under `max_in_flight` or the throttle came free; None where nothing was waited for.
        dispatched_ns: when the client began to work on it.
        connected_ns: when a new connection stood; None on a kept-alive one.
        sent_ns: last request byte handed to the kernel.
        headers_ns, first_event_ns, first_token_ns, first_visible_ns, last_token_ns, end_ns: DESIGN §3.2.
        outcome: an `Outcome`.
        http_status: of the final response.
        error: one line on what went wrong, without secrets.
        retry_after_s: the server's Retry-After.
        input_planned, output_planned: tokens asked for.
        input_tokens, output_tokens, cached_tokens: by the server's `usage`; output falls back as `token_source` says.
        token_source: a `TokenSource`; None without tokens.
        finish_reason: of the first choice.
        chunks: token-bearing chunks (rows in chunks.parquet).
        first_chunk_tokens: tokens of the first of them.
        bytes_received: body bytes.
        coalesced_reads: reads that held more than one token-bearing event: written together by the server, or read so
            late that the stamps of the earlier ones are lost. The verdict tells the two apart by the client's own lag.
        kernel_stamps: True when all reads carried the kernel's stamp.
        connection: number of the connection within the worker.
    """

    index: int
    worker: int
    class_id: int
    scheduled_ns: int
    outcome: str
    input_planned: int
    output_planned: int
    slot_ns: int | None = None
    dispatched_ns: int | None = None
    connected_ns: int | None = None
    sent_ns: int | None = None
    headers_ns: int | None = None
    first_event_ns: int | None = None
    first_token_ns: int | None = None
    first_visible_ns: int | None = None
    last_token_ns: int | None = None
    end_ns: int | None = None
    http_status: int | None = None
    error: str | None = None
    retry_after_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    token_source: str | None = None
    finish_reason: str | None = None
    chunks: int = 0
    first_chunk_tokens: int = 0
    bytes_received: int = 0
    coalesced_reads: int = 0
    kernel_stamps: bool | None = None
    connection: int | None = None


REQUESTS = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("worker", pa.int16(), nullable=False),
        pa.field("class_id", pa.int16(), nullable=False),
        pa.field("scheduled_ns", pa.int64(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("input_planned", pa.int32(), nullable=False),
        pa.field("output_planned", pa.int32(), nullable=False),
        pa.field("slot_ns", pa.int64()),
        pa.field("dispatched_ns", pa.int64()),
        pa.field("connected_ns", pa.int64()),
        pa.field("sent_ns", pa.int64()),
        pa.field("headers_ns", pa.int64()),
        pa.field("first_event_ns", pa.int64()),
        pa.field("first_token_ns", pa.int64()),
        pa.field("first_visible_ns", pa.int64()),
        pa.field("last_token_ns", pa.int64()),
        pa.field("end_ns", pa.int64()),
        pa.field("http_status", pa.int16()),
        pa.field("error", pa.string()),
        pa.field("retry_after_s", pa.float64()),
        pa.field("input_tokens", pa.int32()),
        pa.field("output_tokens", pa.int32()),
        pa.field("cached_tokens", pa.int32()),
        pa.field("token_source", pa.string()),
        pa.field("finish_reason", pa.string()),
        pa.field("chunks", pa.int32(), nullable=False),
        pa.field("first_chunk_tokens", pa.int32(), nullable=False),
        pa.field("bytes_received", pa.int64(), nullable=False),
        pa.field("coalesced_reads", pa.int32(), nullable=False),
        pa.field("kernel_stamps", pa.bool_()),
        pa.field("connection", pa.int32()),
    ]
)

CHUNKS = pa.schema(
    [
        pa.field("request", pa.int64(), nullable=False),
        pa.field("arrival_ns", pa.int64(), nullable=False),
        pa.field("tokens", pa.int32(), nullable=False),
        pa.field("channel", pa.int8(), nullable=False),
        pa.field("bytes", pa.int32(), nullable=False),
    ]
)

TELEMETRY = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("device", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("t_ns", pa.int64(), nullable=False),
        pa.field("value", pa.float64()),
    ]
)

assert tuple(REQUESTS.names) == RequestRecord.__struct_fields__
