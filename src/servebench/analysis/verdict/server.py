"""`server.*`: what the server did that makes its latencies mean less."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from servebench.analysis import server_side
from servebench.analysis.counters import SOURCE, growth, restarts
from servebench.analysis.facts import Facts
from servebench.analysis.sampling import told
from servebench.analysis.verdict.codes import Code, Level, above, unmeasured
from servebench.record.columns import FAILURES

FAIL_SHARE = 0.5
PREEMPTED_WARN = 0.01
HITS_WARN, HITS_FAIL = 0.01, 0.25
FOREIGN_FAIL = 0.10


def check(facts: Facts) -> list[Code]:
    """All codes of the family; those that need the server's own figures only where it gave some."""
    codes = [failures(facts), unfinished(facts)]
    if (facts.run.manifest.get("server_identity") or {}).get("checked_again"):
        codes.append(config_changed(facts))
    if told(facts.run, SOURCE).get("state") == "sampled":
        codes += [restarted(facts), preemptions(facts), prefix_hits(facts), counts(facts)]
    return codes


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


def config_changed(facts: Facts) -> Code:
    """Version, models or settings that the server told differently after the load than before it."""
    changed = facts.run.manifest["server_identity"].get("changed") or []
    text = "the server says the same of itself before and after the load"
    if changed:
        text = "after the load the server says otherwise: " + "; ".join(
            f"{c['what']} {c['before']}, then {c['after']}" for c in changed[:3]
        )
    step = "the figures are of two servers: find out who changed it, then run again"
    return above("server.config_changed", len(changed), "facts", text, step, fail=0)


def restarted(facts: Facts) -> Code:
    """Restarts of the server between the start of the load and its end, by its process and its counters."""
    t = restarts(facts.run)
    inside = t[(t > facts.window.start) & (t <= facts.window.end)]
    text = "the server ran through the whole load"
    if inside.size:
        after = ", ".join(f"{(int(at) - facts.window.start) / 1e9:.1f} s" for at in inside[:3])
        text = f"the server restarted during the load, seen after {after}"
    step = "the figures mix two lives of the server and a cold start: see its log, then run again"
    return above("server.restarted", int(inside.size), "restarts", text, step, fail=0)


def preemptions(facts: Facts) -> Code:
    """Preemptions in the measured window, of the requests that ended in it."""
    grown, ended = growth(facts, "preemptions"), facts.throughput.requests
    number = grown.window if grown.window is not None else grown.run
    if number is None:
        return unmeasured("server.preemptions", "%", "the server does not count its preemptions")
    text = f"{number:.0f} preemptions in the measured window, in which {ended} requests ended"
    step = "requests lost their KV cache and were computed again: lower the concurrency, or give the cache more memory"
    return above("server.preemptions", 100 * number / max(ended, 1), "%", text, step, warn=100 * PREEMPTED_WARN)


def prefix_hits(facts: Facts) -> Code:
    """Prompt tokens found in the prefix cache beyond those that were meant to be, of all that were looked up."""
    found = server_side.describe(facts)["prefix_cache"]
    if found["beyond_share"] is None:
        why = found["reason"] or "no prompt was looked up in the prefix cache"
        return unmeasured("server.prefix_hits", "%", why)
    text = f"the prefix cache held {found['hits']:.0f} of {found['queries']:.0f} prompt tokens, "
    text += f"{found['beyond']:.0f} of them by chance"
    step = "their prefill was not measured: use a fresh --salt, or restart the server"
    share = 100 * found["beyond_share"]
    return above("server.prefix_hits", share, "%", text, step, warn=100 * HITS_WARN, fail=100 * HITS_FAIL)


def counts(facts: Facts) -> Code:
    """Requests and tokens by the server's count against the client's; a difference with a known reason is none."""
    rows = server_side.describe(facts)["agreement"]
    known = [row for row in rows if row["difference"] is not None]
    if not known:
        return unmeasured("server.counts", "%", rows[0]["reason"])
    worst = max(known, key=_off)
    named = worst["what"].replace("_", " ")
    text = f"of {named} the server counted {worst['server']:.0f}, the client {worst['client']}"
    if all(row["agrees"] for row in known):
        text = f"server and client counted the same ({', '.join(row['what'].replace('_', ' ') for row in known)})"
    elif worst["reason"] is not None:
        return Code("server.counts", Level.OK, _off(worst), 0.0, "%", f"{text}: {worst['reason']}")
    step = "somebody else used the server, or it counts differently: run again on a server of your own"
    more = max((100 * r["difference"] / max(r["client"], 1) for r in known if r["what"] == "requests"), default=0.0)
    fail = 100 * FOREIGN_FAIL
    return above("server.counts", max(_off(worst), 0.0), "%", text, step, warn=0.0, fail=fail if more > fail else None)


def _off(row: dict[str, Any]) -> float:
    """How far the counts are apart, % of the client's."""
    return float(100 * abs(row["difference"]) / max(row["client"], 1))
