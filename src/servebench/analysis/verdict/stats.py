"""`stats.*` and `analysis.*`: whether there is enough, steady and sound data for what is claimed."""

from __future__ import annotations

from servebench.analysis import identities
from servebench.analysis.data import MISSING, SOURCES
from servebench.analysis.facts import Facts
from servebench.analysis.quantiles import sample_floor
from servebench.analysis.stationarity import LEAST_CHANGE, Drift
from servebench.analysis.verdict.codes import Code, Level, above, unmeasured
from servebench.record.columns import TokenSource


def check(facts: Facts) -> list[Code]:
    """All codes of the families."""
    return [
        cohort(facts),
        incomplete(facts),
        *too_few(facts),
        not_steady(facts),
        *warmup(facts),
        assumed_tokens(facts),
        usage(facts),
        identity(facts),
    ]


def cohort(facts: Facts) -> Code:
    """There must be at least one request in the measured window."""
    number = facts.offered.planned
    text = f"{number} requests were due in the measured window"
    if number:
        return Code("stats.cohort", Level.OK, number, 1, "requests", text)
    step = "give a longer duration or more requests, or a shorter warm-up"
    return Code("stats.cohort", Level.FAIL, 0, 1, "requests", "no request fell into the measured window", step)


def incomplete(facts: Facts) -> Code:
    """A run that was cut short is SUSPECT at best."""
    status = facts.run.manifest.get("status")
    if not facts.run.incomplete:
        return Code("stats.incomplete", Level.OK, 0, 0, "requests", "the run came to its end")
    lost = facts.whole.unrecorded
    ways = {"interrupted": "was interrupted", "failed": "failed", "running": "still runs, or was killed"}
    how = ways.get(str(status), "did not come to its end")
    step = "run it again to its end"
    if not lost:
        text = f"the run {how}; what was recorded until then is here"
        return unmeasured("stats.incomplete", "requests", text, level=Level.WARN, step=step)
    text = f"the run {how}; {lost} requests that were due have no record"
    return Code("stats.incomplete", Level.WARN, lost, 0, "requests", text, step)


def too_few(facts: Facts) -> list[Code]:
    """One code for each objective: whether its quantile has the samples that it needs."""
    codes = []
    for reached in facts.objectives:
        objective, floor = reached.objective, sample_floor(reached.objective.quantile)
        text = f"{objective.metric} {objective.quantile.label} rests on {reached.n} samples; it needs {floor}"
        level = Level.WARN if reached.below_floor else Level.OK
        step = f"run until the measured window holds {floor} samples, or set the objective at a lower quantile"
        codes.append(
            Code("stats.too_few", level, reached.n, floor, "samples", text, step if level is Level.WARN else "")
        )
    return codes


def not_steady(facts: Facts) -> Code:
    """Whether in-flight requests or latency grew or fell over the measured window."""
    tested = [d for d in facts.drifts if d.z is not None and d.change is not None]
    limit = 100 * LEAST_CHANGE
    if not tested:
        return unmeasured("stats.not_steady", "%", "too short to tell a drift from chance")
    worst = max(tested, key=_weight)
    change = 100 * (worst.change or 0.0)
    if not worst.significant:
        return Code("stats.not_steady", Level.OK, change, limit, "%", "no drift beyond chance in the measured window")
    text = f"not steady: {worst.name} changed by {change:+.0f} % over the measured window (z {worst.z:.1f})"
    step = "the load exceeds what the server carries: lower it" if change > 0 else "give a longer warm-up"
    return Code("stats.not_steady", Level.WARN, change, limit, "%", text, step)


def _weight(drift: Drift) -> tuple[bool, float]:
    return drift.significant, abs(drift.change or 0.0)


def warmup(facts: Facts) -> list[Code]:
    """With `warmup: auto`: whether a warm-up could be cut off at all."""
    found = facts.window.truncation
    if found is None:
        return []
    share = 100 * found.share
    if found.rejected:
        text = f"MSER-5 would cut {share:.0f} % of the run as warm-up; nothing was cut"
        return [Code("stats.warmup", Level.WARN, share, 50, "%", text, "the run never settled: make it longer")]
    return [Code("stats.warmup", Level.OK, share, 50, "%", f"MSER-5 cut {share:.0f} % of the run as warm-up")]


def assumed_tokens(facts: Facts) -> Code:
    """Share of the ok requests whose tokens were assumed to be as many as their events; a cut stream has no usage."""
    sources = facts.run.requests.token_source[facts.run.requests.ok]
    counted = int((sources >= 0).sum())
    if not counted:
        return unmeasured("stats.assumed_tokens", "%", "no request ended well")
    number = int((sources == SOURCES.index(TokenSource.ASSUMED)).sum())
    text = f"for {number} of {counted} requests one token per event was assumed"
    step = "token metrics may be off: let the server send usage, or give a --tokenizer"
    return above("stats.assumed_tokens", 100 * number / counted, "%", text, step, warn=0.0)


def usage(facts: Facts) -> Code:
    """Where chunks state their own tokens: whether they add up to the server's `usage`."""
    run = facts.run
    known = run.requests.ok & (run.requests.output_tokens != MISSING) & identities.counted_per_chunk(run)
    if not known.any():
        return unmeasured("stats.usage", "%", "no chunk stated its own tokens")
    wrong = int((identities.received_tokens(run) != run.requests.output_tokens)[known].sum())
    text = f"the tokens of the chunks add up to usage in {int(known.sum()) - wrong} of {int(known.sum())} requests"
    step = "the server contradicts itself: token metrics are off by the difference"
    return above("stats.usage", 100 * wrong / int(known.sum()), "%", text, step, warn=0.0)


def identity(facts: Facts) -> Code:
    """The identities of the data; when one fails, the record or the analysis is wrong, and so are the figures."""
    failed = [i for i in facts.identities if not i.ok]
    if not failed:
        return Code("analysis.identity", Level.OK, 0, 0, "identities", f"all {len(facts.identities)} identities hold")
    first = failed[0]
    text = f"{first.text} does not hold: {first.left} against {first.right}, {first.violations} violations"
    step = "this is a defect of servebench or a damaged run directory: report it with the directory"
    return Code("analysis.identity", Level.FAIL, len(failed), 0, "identities", text, step)
