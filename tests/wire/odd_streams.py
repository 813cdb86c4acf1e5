"""The table of odd streams: what a row is made of, and the pieces that scripts are put together from.

A row says what a server does and what the client must make of it. Sends are labelled; expected instants name the label
of the send that brought the bytes, so they are compared with what the server's own log says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from servebench.record.columns import Channel
from servebench.testing import Events, Script, Send, Step, Wait, sse, sse_response, usage

GAP = 0.015  # seconds between labelled sends, far more than a stamp may be off
BOTH = ("chat", "completions")
LATE_NS = 8_000_000  # half of the gap, so that an instant names one send only
ANY = "*"  # some instant, which the server's log does not hold
CHANNELS = {"t": Channel.CONTENT, "r": Channel.REASONING, "c": Channel.TOOL}


@dataclass(frozen=True)
class Row:
    """One odd stream and the record that it must give.

    Attributes:
        id: names the row.
        script: what the server plays, made from the API's events.
        outcome, tokens, source, finish, status, retry_after, prompt, cached: of the record.
        chunks: label of each token-bearing chunk in order, with `*n` for its tokens where that is not 1. The label's
            first letter tells the channel: t content, r reasoning, c tool call.
        first_event, headers, end: labels, ANY, or None where the instant must be missing. `first_event` "" means the
            first chunk's.
        first_visible: a label where it is not the first content chunk's.
        error: what the error text must contain; None when there must be no error.
        apis: which of the two the row is for.
        stream: whether a stream is asked for.
        limits: time limits in seconds: connect, idle, total.
        late_ns: how long after its send an instant may be.
        coalesced: reads that held more than one token-bearing event.
    """

    id: str
    script: Callable[[Events], Script]
    chunks: str = ""
    outcome: str = "ok"
    tokens: int | None = None
    source: str | None = None
    finish: str | None = "stop"
    first_event: str | None = ""
    first_visible: str | None = None
    headers: str | None = "head"
    end: str | None = "done"
    status: int | None = 200
    error: str | None = None
    retry_after: float | None = None
    prompt: int | None = None
    cached: int | None = None
    apis: tuple[str, ...] = BOTH
    stream: bool = True
    limits: dict[str, float] = field(default_factory=dict)
    coalesced: int = 0
    late_ns: int = LATE_NS
    slow: bool = False

    def expected_chunks(self) -> list[tuple[str, int, int]]:
        """Label, tokens and channel of each chunk."""
        pairs = (item.partition("*") for item in self.chunks.split())
        return [(label, int(count or 1), CHANNELS[label[0]]) for label, _, count in pairs]


KNOWN = {"tokens": 3, "source": "events", "chunks": "t0 t1 t2", "prompt": 7}


def spaced(payloads: Iterable[bytes], letter: str = "t", start: int = 0) -> list[Step]:
    """Each payload in its own send, labelled letter and number, GAP after the one before."""
    steps: list[Step] = []
    for number, payload in enumerate(payloads, start):
        steps += [Wait(GAP), Send(payload, f"{letter}{number}")]
    return steps


def texts(ev: Events, count: int, start: int = 0, **style: Any) -> list[Step]:
    """`count` events of one word each."""
    return spaced((sse(ev.text(" word"), **style) for _ in range(count)), start=start)


def tail(
    ev: Events, counts: dict[str, Any] | None, *, done: bool = True, finish: bool = True, **style: Any
) -> list[Step]:
    """The end of a stream: finish reason, usage, [DONE]; each can be left out."""
    steps: list[Step] = [Wait(GAP)]
    steps += [Send(sse(ev.finish(), **style), "finish")] if finish else []
    steps += [Send(sse(ev.chunk([], usage=counts), **style), "usage")] if counts else []
    eol = style.get("eol", "\n")
    return [*steps, Send(f"data: [DONE]{eol}{eol}".encode(), "done")] if done else steps


def plain(ev: Events, count: int = 3, **options: Any) -> list[Step]:
    """A stream as it should be: `count` tokens, finish, usage, [DONE]. `options` are those of `sse_response`."""
    return sse_response([*texts(ev, count), *tail(ev, usage(7, count))], **options)
