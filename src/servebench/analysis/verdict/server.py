"""`server.*`: what the server did that makes its latencies mean less."""

from __future__ import annotations

from collections import Counter

import numpy as np

from servebench.analysis.facts import Facts
from servebench.analysis.verdict.codes import Code, Level, above, unmeasured
from servebench.record.columns import FAILURES

FAIL_SHARE = 0.5


def check(facts: Facts) -> list[Code]:
    """All codes of the family."""
    return [failures(facts), unfinished(facts)]


def failures(facts: Facts) -> Code:
    """Share of the requests that failed, of those offered; of the whole run when the cohort is empty."""
    numbers = facts.offered if facts.offered.planned else facts.whole
    if not numbers.planned:
        return unmeasured(
            "server.failures", "%", "no request was sent", level=Level.FAIL, step="look at the log of the run"
        )
    share = numbers.failed / numbers.planned
    text = f"{numbers.failed} of {numbers.planned} requests failed{_kinds(facts, numbers.by_outcome)}"
    step = "failed requests are missing from the latencies: find their cause in the server's log, or lower the load"
    if numbers.failed and not numbers.ok:
        return Code(
            "server.failures", Level.FAIL, 100 * share, 100 * FAIL_SHARE, "%", f"no request ended well: {text}", step
        )
    fail = 100 * FAIL_SHARE - 1e-9  # half of all is already a failure
    return above("server.failures", 100 * share, "%", text, step, warn=0.0, fail=fail)


def _kinds(facts: Facts, numbers: dict[str, int]) -> str:
    kinds = [f"{numbers[o]} {o}" for o in FAILURES if numbers[o]]
    return f" ({', '.join(kinds)}{_example(facts)})" if kinds else ""


def _example(facts: Facts) -> str:
    """The most frequent error text."""
    failed = np.flatnonzero(facts.run.requests.ended(*FAILURES))
    counted = Counter(text for i in failed if (text := facts.run.requests.error[i]))
    return f'; mostly "{counted.most_common(1)[0][0]}"' if counted else ""


def unfinished(facts: Facts) -> Code:
    """Requests that were still in flight when the drain ended: their latencies are known only from below.

    When no other ended well, there is no result at all.
    """
    number = facts.whole.in_flight
    text = f"{number} requests had not ended at the end of the drain" if number else "every request that was sent ended"
    step = "their latencies are missing from the tail: raise load.drain, or lower the load"
    fail = None if facts.whole.ok else 0
    return above("server.unfinished", number, "requests", text, step, warn=0, fail=fail)
