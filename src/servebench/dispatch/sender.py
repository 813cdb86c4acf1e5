"""Sends the calls of one worker and turns what comes back into records, without ever keeping the sockets waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import httpx
import numpy as np
from numpy.typing import NDArray

from servebench.dispatch.call import Call, record_of, retry_after
from servebench.dispatch.job import Job
from servebench.dispatch.payloads import Payloads
from servebench.dispatch.secret import Secrets
from servebench.dispatch.slices import Slices
from servebench.record.columns import Outcome, RequestRecord
from servebench.record.counters import Slot, WorkerCounters
from servebench.record.journal import JournalWriter
from servebench.record.raw import RawWriter
from servebench.wire.answer import Answer
from servebench.wire.pool import Pool
from servebench.workload.plan import Plan

PORTION = 256  # reads of one stream that are decoded together
FAILED_AGAIN = 2  # answers in a row that failed inside, after which a closed loop's slot pauses
INSIDE = frozenset((Outcome.STREAM_ERROR, Outcome.EMPTY, Outcome.TRUNCATED, Outcome.PROTOCOL_ERROR, Outcome.RESET))

_now = time.time_ns


class Sender:
    """What the loops (open, closed) send with.

    Args:
        job: the worker's job.
        plan: the whole plan.
        payloads: the requests as bytes, in the order of the shard.
        pool: connections to the server.
        slices: where decoding is queued.
        journal: where records go.
        raw: where raw bytes go, if they are kept.
        counters: the worker's live counters.
        secrets: the API key and the headers that are not stored, blanked out wherever the server repeats them.
        count: a local tokenizer's count, if one is configured.

    Attributes:
        on_free: called with a call whose exchange has ended, before it is decoded.
        in_flight: calls on the wire.
        late_ns: largest lateness of a dispatch since the health sampler last reset it.
        tokens_done: tokens of finished calls.
        reads, user_stamped_reads: reads of finished calls, and those of them that the kernel did not stamp.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        payloads: Payloads,
        pool: Pool,
        slices: Slices,
        journal: JournalWriter,
        raw: RawWriter | None,
        counters: WorkerCounters,
        secrets: Sequence[str] = (),
        count: Callable[[str], int] | None = None,
    ) -> None:
        self._job = job
        self._plan = plan
        self._payloads = payloads
        self._pool = pool
        self._slices = slices
        self._journal = journal
        self._raw = raw
        self._counters = counters
        self._secrets = Secrets(*secrets)
        self._count = count
        self._running: dict[Call, None] = {}
        self._decoding = 0
        self._failed: dict[int, int] = {}  # slot: how many of its calls in a row have failed inside
        self.on_free: Callable[[Call], None] = lambda call: None
        self.late_ns = 0
        self.tokens_done = 0
        self.reads = 0
        self.user_stamped_reads = 0

    @property
    def in_flight(self) -> int:
        """Calls on the wire."""
        return len(self._running)

    @property
    def busy(self) -> bool:
        """Whether anything is on the wire or waits to be decoded."""
        return bool(self._running) or self._decoding > 0

    def due(self) -> None:
        """Count a call whose time has come, sent or not."""
        self._counters.add(Slot.SCHEDULED)

    def owe(self, calls: int) -> None:
        """Expect so many more calls of the cohort; the parent lets load go on until each has its outcome."""
        self._counters.add(Slot.COHORT_OPEN, calls)

    def send(self, call: Call) -> None:
        """Send the call; its payload is the next one of the shard."""
        call.portion = PORTION
        call.on_portion = self._portion
        call.on_end = self._ended
        self._running[call] = None
        call.dispatched_ns = now = _now()
        self._note_lateness(call, now)
        counters = self._counters
        counters.add(Slot.DISPATCHED)
        counters.set(Slot.IN_FLIGHT, len(self._running))
        self._pool.start(self._payloads.take(), call)

    def _note_lateness(self, call: Call, now: int) -> None:
        late = now - max(call.scheduled_ns, call.slot_ns or 0)
        if late > self.late_ns:
            self.late_ns = late

    def drop(self, call: Call, reason: str) -> None:
        """Record a call that is not sent."""
        self._payloads.skip()
        self._record(
            RequestRecord(
                index=call.row,
                worker=self._job.worker,
                class_id=int(self._plan.class_id[call.row]),
                scheduled_ns=call.scheduled_ns,
                outcome=Outcome.DROPPED.value,
                input_planned=int(self._plan.input_tokens[call.row]),
                output_planned=int(self._plan.output_tokens[call.row]),
                slot_ns=call.slot_ns,
                error=reason,
            )
        )
        if call.cohort:
            self._counters.add(Slot.COHORT_OPEN, -1)

    def give_up(self) -> None:
        """End everything that is still on the wire as `in_flight`; what arrived so far is kept."""
        for call in list(self._running):
            call.stopped = True
            self._pool.cancel(call, httpx.ReadTimeout("given up at the end of the drain"))

    # What the wire calls.

    def _portion(self, exchange: object) -> None:
        call = exchange
        assert isinstance(call, Call)
        parts, stamps = call.take()
        self._slices.later(partial(self._decode, call, parts, stamps))

    def _ended(self, exchange: object) -> None:
        call = exchange
        assert isinstance(call, Call)
        self._pool.finished(call)
        self._running.pop(call, None)
        self._counters.set(Slot.IN_FLIGHT, len(self._running))
        self._decoding += 1
        self._slices.later(partial(self._finish, call))
        self.on_free(call)

    def _decode(self, call: Call, parts: list[bytes], stamps: list[int]) -> None:
        if call.answer is None:
            call.answer = Answer(self._job.stream, self._count)
        if self._raw is not None:
            self._raw.add(call.row, self._secrets.out_of_parts(parts), stamps)
        call.answer.feed(parts, stamps)

    def _finish(self, call: Call) -> None:
        self._decode(call, *call.take())
        assert call.answer is not None
        chunks = call.answer.finish()
        row = call.row
        planned = int(self._plan.input_tokens[row]), int(self._plan.output_tokens[row])
        record = record_of(call, self._job.worker, int(self._plan.class_id[row]), planned, chunks)
        record.error = self._secrets.out_of(record.error)
        record.finish_reason = self._secrets.out_of(record.finish_reason)
        self._journal.add(record, chunks.arrival_ns, chunks.tokens, chunks.channel, chunks.size)
        self._count_finished(call, record)
        if chunks.tokens.size:
            self._observe(call, record, chunks.arrival_ns, chunks.tokens)
        if record.outcome in INSIDE:
            self._failed[call.slot] = self._failed.get(call.slot, 0) + 1
        elif self._failed:
            self._failed.pop(call.slot, None)
        self._decoding -= 1

    def _record(self, record: RequestRecord) -> None:
        self._journal.add(record)
        self._counters.finish(record.outcome)

    def _count_finished(self, call: Call, record: RequestRecord) -> None:
        counters = self._counters
        counters.finish(record.outcome)
        self.tokens_done += record.output_tokens or 0
        self.reads += call.reads
        self.user_stamped_reads += call.user_stamped_reads
        counters.add(Slot.BYTES, record.bytes_received)
        if call.cohort:
            counters.add(Slot.COHORT_OPEN, -1)

    def _observe(
        self, call: Call, record: RequestRecord, arrival: NDArray[np.int64], tokens: NDArray[np.int32]
    ) -> None:
        counters = self._counters
        origin = call.sent_ns if self._job.concurrency is not None else call.scheduled_ns
        if origin is not None and record.outcome == Outcome.OK:
            counters.observe_one("ttft", int(arrival[0]) - origin)
            counters.observe_one("e2e", int(arrival[-1]) - origin)
        if arrival.size > 1:
            later = tokens[1:]
            counters.observe("itl", (np.diff(arrival) // later).astype(np.int64), later.astype(np.int64))

    def live_tokens(self) -> int:
        """Tokens so far: those of finished calls, and one for each read of the others."""
        return self.tokens_done + sum(call.reads for call in self._running)

    def answering(self) -> int:
        """Calls on the wire that have a token: the first read may hold no more than the role, the second holds one."""
        return sum(call.reads > 1 for call in self._running)

    def retry_pause(self, call: Call) -> float | None:
        """Seconds that the server asked for before the next try, 0 if it refused without; None if it did not refuse.

        What an answer says is known only after it was decoded, so that one which fails inside counts when it does so
        again and again.
        """
        if call.status in (429, 503):
            return retry_after(call) or 0.0
        if isinstance(call.error, (httpx.ConnectError, httpx.ConnectTimeout)):
            return 0.0
        if call.error is not None and call.headers_ns is None:
            return 0.0
        if call.status is not None and (call.status >= 300 or call.received == 0):
            return 0.0
        return 0.0 if self._failed.get(call.slot, 0) >= FAILED_AGAIN else None
