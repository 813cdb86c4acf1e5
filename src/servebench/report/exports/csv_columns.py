"""What the columns of the CSV export mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servebench.analysis.metrics import METRICS
from servebench.report.exports.marks import title
from servebench.report.markdown import table

REQUESTS = {
    "index": "row of the plan",
    "worker": "number of the worker process",
    "class_id": "traffic class, an index into the plan's classes",
    "scheduled_ns": "due (open loop), or when the slot came free (closed loop)",
    "outcome": "how it ended: ok, one of the failures, dropped or in_flight",
    "input_planned": "prompt tokens asked for",
    "output_planned": "output tokens asked for",
    "slot_ns": "a slot under max_in_flight or the throttle came free; empty where nothing was waited for",
    "dispatched_ns": "the client began to work on it",
    "connected_ns": "a new connection stood; empty on a kept one",
    "sent_ns": "last byte of the request handed to the kernel",
    "headers_ns": "response headers received",
    "first_event_ns": "first event received",
    "first_token_ns": "first output token of any kind received",
    "first_visible_ns": "first answer content received",
    "last_token_ns": "last output token received",
    "end_ns": "end of the stream",
    "http_status": "of the final response",
    "error": "what went wrong, in a line",
    "retry_after_s": "the server's Retry-After",
    "input_tokens": "prompt tokens by the server's count",
    "output_tokens": "output tokens, counted as token_source says",
    "cached_tokens": "prompt tokens that the server found in its cache",
    "token_source": "where the tokens of each chunk come from",
    "finish_reason": "of the first choice",
    "chunks": "chunks that held tokens",
    "first_chunk_tokens": "tokens of the first of them",
    "bytes_received": "bytes of the body",
    "coalesced_reads": "reads that held more than one chunk",
    "kernel_stamps": "whether every read carried the kernel's stamp",
    "connection": "number of the connection within the worker",
    "class": "name of the traffic class",
    "cohort": "scheduled inside the measured window; the report's latencies are of the rows with cohort and outcome ok",
    "run": "name of the run",
    "marks": "SIMULATED, RANDOM WEIGHTS, INCOMPLETE; empty for none of it",
}
TELEMETRY = {
    "source": "who measured it: client, host, server, nvml",
    "device": "of what",
    "name": "which quantity",
    "t_ns": "when",
    "value": "the sample; empty when there was none",
}
UNITS = {"_ns": "ns since 1970 (CLOCK_REALTIME)", "_ms": "ms", "_s": "s", "_tokens": "tokens", "_planned": "tokens"}
TABLES: Mapping[str, Mapping[str, str]] = {"requests.csv": REQUESTS, "telemetry.csv": TELEMETRY}


def page(summary: dict[str, Any], columns: Mapping[str, Sequence[str]]) -> str:
    """A page on what the tables are of, and on each of their columns.

    Raises:
        KeyError: a column that nothing is said of here.
    """
    parts = [f"# {_escaped(title(summary))}"]
    for name, names in columns.items():
        rows = [(each, _unit(each), _meaning(name, each, summary)) for each in names]
        parts += [f"## {name}", table(("column", "unit", "meaning"), rows)]
    return "\n\n".join(parts) + "\n"


def _unit(column: str) -> str:
    return next((unit for ending, unit in UNITS.items() if column.endswith(ending)), "")


def _meaning(file: str, column: str, summary: dict[str, Any]) -> str:
    """Of an instant in ms the instant's, of a metric its definition in this run."""
    stem = column.removesuffix("_ms")
    if column in TABLES[file]:
        return TABLES[file][column]
    if stem in {metric.name for metric in METRICS}:
        return str(summary["metrics"][stem]["definition"])
    return f"{TABLES[file][f'{stem}_ns']}; since the load began"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")
