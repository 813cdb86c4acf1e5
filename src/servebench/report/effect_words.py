"""The words of a comparison, for console and record: what was found in a sentence, and figures as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servebench.report.figures import NOTHING, duration, number, plural, size

Document = Mapping[str, Any]

_LATENCIES = {"ttft": "TTFT", "ttft_service": "TTFT (sent)", "ttfv": "TTFV", "itl": "ITL", "icl": "ICL", "tpot": "TPOT"}
_LATENCIES |= {"e2e": "E2E", "e2e_service": "E2E (sent)", "stall": "stall"}
_SHORT = {
    "output_tokens_per_s": "tokens/s out",
    "input_tokens_per_s": "tokens/s in",
    "total_tokens_per_s": "tokens/s",
    "requests_per_s": "requests/s",
    "goodput_per_s": "goodput/s",
    "attainment": "attainment",
    "failed_share": "failed share",
    "j_per_output_token": "J per token",
    "j_per_request": "J per request",
    "mean_power": "power",
    "preemptions": "preemptions",
    "queue_mean": "queue, mean",
    "prefix_hit_share": "prefix-cache hits",
}
FACTOR, END_FACTOR = 2.0, 3.0  # from here on a ratio, or an end of its interval, is told as "3.1 ×" and not in per cent
TESTED = ("primary", "secondary")
DECIDED = ("better", "worse")
SHOWN = (  # of the estimates; all of them are in experiment.json
    *("ttft.p50", "ttft.p95", "ttft.p99", "itl.mean", "itl.p50", "itl.p99", "tpot.p50", "e2e.p50", "e2e.p99"),
    *("stall.p99", "output_tokens_per_s", "goodput_per_s", "attainment", "failed_share", "j_per_output_token"),
    *("preemptions", "queue_mean"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found for one candidate.

    Attributes:
        change: what was compared with what.
        text: what it does.
    """

    change: str
    text: str

    @property
    def sentence(self) -> str:
        """Both of them."""
        return f"{self.change}: {self.text}"


def title(name: str) -> str:
    """``itl.p99_9`` as ``ITL p99.9``."""
    metric, _, statistic = name.partition(".")
    if metric in _LATENCIES:
        return f"{_LATENCIES[metric]} {statistic.replace('_', '.')}"
    return _SHORT.get(name, name)


def value(effect: Document, side: str) -> str:
    """The median of the base or the candidate, in its unit."""
    found: float | None = effect[side]
    return amount(found, effect["unit"])


def amount(found: float | None, unit: str) -> str:
    """A figure with its unit."""
    if found is None:
        return NOTHING
    if unit == "ms":
        return duration(found)
    if unit == "bytes":
        return size(found)
    if unit == "share":
        return f"{100 * found:.3g} %"
    short = "" if unit in ("", "tokens/s", "requests/s", "1/s", "requests", "tokens") else f" {unit}"
    return f"{number(found)}{short}"


def measured(figure: str, found: float | None) -> str:
    """A value of the figure `figure`, in its unit."""
    return amount(found, "ms" if figure.partition(".")[0] in _LATENCIES else "")


def percent(ratio: float, signed: bool = True) -> str:
    """A ratio as its distance from one: ``+22.4 %``, ``−8.1 %``."""
    distance = 100 * (ratio - 1)
    shown = f"{distance:+.0f}" if abs(distance) >= 100 else f"{distance:+.1f}"
    return f"{shown if signed else shown.lstrip('+-')} %".replace("-", "−")


def change(effect: Document) -> str:
    """The effect for a column: ``−75.6 %``, ``4.2 ×``, or a difference in the figure's unit."""
    return _one(effect["ratio"], effect)


def interval(effect: Document) -> str:
    """Its interval for a column; a dash where there is none."""
    low, high = effect["low"], effect["high"]
    if low is None or high is None:
        return NOTHING
    if effect["kind"] == "ratio" and _in_factors(effect):
        return f"{_end(low)} to {_end(high)} ×"
    return f"{_one(low, effect).removesuffix(' %')} to {_one(high, effect)}"


def _end(ratio: float) -> str:
    """Two digits of an interval's end are enough, but for one that all but touches 1."""
    return f"{ratio:.3g}" if 0.9 < ratio < 1.1 else f"{ratio:.2g}"


def _one(ratio: float | None, effect: Document) -> str:
    if ratio is None:
        return NOTHING
    if effect["kind"] != "ratio":
        return f"{ratio:+.3g}".replace("-", "−")
    return f"{ratio:.3g} ×" if _in_factors(effect) else percent(ratio)


def _in_factors(effect: Document) -> bool:
    """Whether the effect or its interval is so wide that percentages would be hard to read."""
    ends = [end for end in (effect["low"], effect["high"]) if end is not None]
    return _is_factor(effect["ratio"]) or any(_is_factor(end, END_FACTOR) for end in ends)


def _is_factor(ratio: float | None, limit: float = FACTOR) -> bool:
    return ratio is not None and not 1 / limit < ratio < limit


def told(effect: Document) -> str:
    """The effect in a sentence: ``ITL p99 4.1 × lower (3.6 to 4.7)``, ``TTFT p50 22 % higher (18 to 27 %)``."""
    ratio, low, high = (effect[key] for key in ("ratio", "low", "high"))
    name = title(effect["figure"])
    if ratio is None:
        return f"{name} not measured"
    if effect["kind"] != "ratio":
        return f"{name} {_one(ratio, effect)}"
    ends = (low, high) if low is not None and high is not None else None
    size, around = (_factor if _in_factors(effect) else _percentage)(ratio, ends)
    return f"{name} {size} {'lower' if ratio < 1 else 'higher'}{around}"


def _factor(ratio: float, ends: tuple[float, float] | None) -> tuple[str, str]:
    """``4.1 ×`` and `` (3.6 to 4.7)``: how many times lower, or higher; an interval about 1 as ratios."""
    size = f"{max(ratio, 1 / ratio):.2g} ×"
    if ends is None:
        return size, ""
    if ends[0] < 1 < ends[1]:
        return size, f" (ratio {ends[0]:.2g} to {ends[1]:.2g})"
    near, far = sorted(max(end, 1 / end) for end in ends)
    return size, f" ({near:.2g} to {far:.2g})"


def _percentage(ratio: float, ends: tuple[float, float] | None) -> tuple[str, str]:
    """``22.0 %`` and `` (18.0 to 27.0 %)``; an interval about 1 with signs."""
    size = percent(ratio, signed=False)
    if ends is None:
        return size, ""
    if ends[0] < 1 < ends[1]:
        return size, f" ({percent(ends[0]).removesuffix(' %')} to {percent(ends[1])})"
    near, far = sorted(ends, key=lambda end: abs(end - 1))
    return size, f" ({percent(near, signed=False).removesuffix(' %')} to {percent(far, signed=False)})"


def probability(p: float | None) -> str:
    """A p value for a column."""
    if p is None:
        return NOTHING
    return "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def floor(effect: Document) -> str:
    """The A/A noise floor for a column: ``2.3 %``, or ``4.1 ×`` where equal arms are as far apart as that."""
    found: float | None = effect["floor"]
    if found is None:
        return NOTHING
    return f"{found:.2g} ×" if _is_factor(found) else f"{100 * (found - 1):.2g} %"


def tested(comparison: Document) -> list[Document]:
    """The effects that were named before the first run."""
    return [effect for effect in comparison["effects"] if effect["role"] in TESTED]


def estimates(comparison: Document, names: Sequence[str] = SHOWN) -> list[Document]:
    """The effects that are only estimated, of the figures that are worth a table, in its order."""
    found = {effect["figure"]: effect for effect in comparison["effects"] if effect["role"] not in TESTED}
    return [found[name] for name in names if name in found and found[name]["ratio"] is not None]


def answers(result: Document) -> list[Answer]:
    """What was found, for each candidate."""
    return [Answer(what_changed(result, comparison), _found(comparison)) for comparison in result["comparisons"]]


def what_changed(result: Document, comparison: Document) -> str:
    """``max-num-batched-tokens 128 against 2048``; the arms' names where more than one thing was changed, or none."""
    base, cand = comparison["base"], comparison["cand"]
    variables = result["design"]["variables"]
    ours, theirs = (_settings(result["arms"][name]) for name in (base, cand))
    if len(variables) == 1 and variables[0] in ours and variables[0] in theirs:
        key = variables[0]
        return f"{key.rpartition('.')[2]} {theirs[key]} against {ours[key]}"
    return f"{cand} against {base}"


def _settings(arm: Document) -> dict[str, str]:
    return dict(override.partition("=")[::2] for override in arm["overrides"])


def _found(comparison: Document) -> str:
    effects = tested(comparison)
    decided = [effect for effect in effects if effect["verdict"] in DECIDED]
    if not decided:
        return _nothing(effects)
    verdicts = {effect["verdict"] for effect in decided}
    end = "a trade" if len(verdicts) == 2 else next(iter(verdicts))
    rest = [told(effect) for effect in effects if effect["verdict"] == "undecided"]
    open_end = f"; undecided: {', '.join(rest)}" if rest else ""
    return f"{', '.join(map(told, decided))}: {end}{open_end}."


def _nothing(effects: Sequence[Document]) -> str:
    """The sentence where nothing is better or worse."""
    primary = effects[0]
    if all(effect["ratio"] is None for effect in effects):
        return f"nothing was measured ({primary['reason']})."
    if all(effect["verdict"] == "no difference" for effect in effects):
        return f"no difference that matters ({', '.join(map(told, effects))})."
    more = primary["more_runs"]
    what = f"{'pair' if primary['paired'] else 'run'}{'' if more == 1 else 's'}{'' if primary['paired'] else ' an arm'}"
    wanted = f"; about {more} more {what} would settle {title(primary['figure'])}" if more else ""
    return f"undecided ({', '.join(map(told, effects))}){wanted}."


def design_lines(result: Document) -> list[str]:
    """How it was measured: pairs, order, level, and what the design could find."""
    design, primary = result["design"], tested(result["comparisons"][0])[0] if result["comparisons"] else None
    lines = [_measured(result)]
    lines.append(
        f"primary figure {title(design['primary'])}; one chance of {100 * design['alpha']:g} % of a false alarm for "
        "all tested figures together (Holm's correction, most of it kept for the primary); "
        f"{100 * design['min_effect']:g} % is the least that matters"
    )
    if primary is not None:
        lines.append(_reach(primary, design))
    return lines


def _measured(result: Document) -> str:
    design, used = result["design"], result["pairs"]["used"]
    if not design["paired"]:
        runs = ", ".join(f"{name} {arm['used']}" for name, arm in result["arms"].items())
        return f"runs that are no pairs ({runs}): run-level permutation test"
    pairs = " and ".join(f"{n} for {name}" for name, n in used.items()) if len(set(used.values())) > 1 else ""
    pairs = pairs or plural(next(iter(used.values()), 0), "pair")
    if design["order"] is None:
        return f"{pairs} of runs that were there already; the runs of a pair have one plan"
    planned = f"{pairs} used of {result['pairs']['planned']} planned, in random balanced order"
    return f"{planned}; the runs of a pair have one plan"


def _reach(primary: Document, design: Document) -> str:
    least = primary["least_p"]
    parts = [f"smallest p that so many runs can give {probability(least)}" if least is not None else "no test possible"]
    if primary["power"] is not None:
        found = f"{100 * primary['power']:.0f} %"
        parts.append(f"chance to find a true effect of {100 * design['min_effect']:g} % with them: {found}")
    return "; ".join(parts)


def side_effects(result: Document) -> tuple[list[Document], list[tuple[str, str]]]:
    """Side effects that some arm has, and those that none has, as title and reason."""
    rows = (result["side_effects"] or {}).get("figures") or []
    known = [row for row in rows if any(found is not None for found in row["arms"].values())]
    missing = [(row["title"], next(iter(row["reasons"].values()), "")) for row in rows if row not in known]
    return known, missing


def side_ratio(row: Document, arm: str) -> str:
    """How a side effect changed, for a column."""
    ratio = row["ratios"].get(arm)
    if ratio is None:
        return NOTHING
    return f"{ratio:.3g} ×" if _is_factor(ratio) else percent(ratio)


def correctness_lines(result: Document) -> list[tuple[str, bool]]:
    """Each line of the gate and whether all is well with it."""
    found = result["correctness"]
    if not found or not found["probes"]:
        return [(f"not judged: {(found or {}).get('reason') or 'no probes were asked'}", False)]
    return [line for comparison in found["comparisons"] for line in _gate(comparison, found)]


def _gate(comparison: Document, found: Document) -> list[tuple[str, bool]]:
    good = comparison["verdict"] in ("same", "differs at near-ties only")
    head = f"{comparison['arm']}: {comparison['verdict']} ({comparison['reason']})"
    if comparison["agreement"] is None:
        return [(head, good)]
    lines = [f"{head}; {_shares(comparison, comparison['probes'], 'probes answered alike')}"]
    if comparison["p"] is not None:
        lines[0] += f", p {probability(comparison['p_adjusted'])}"
    ends = comparison["finish_reasons"]
    lines.append(
        f"lengths alike in {_share(comparison['lengths']['agreement'])}, finish reasons in {_share(ends['agreement'])}"
    )
    if differing := comparison["differing"]:
        lines.append(f"differ: {'; '.join(_parted(each) for each in differing[:4])}{_more(len(differing) - 4)}")
    return [(line, good) for line in lines]


def _shares(comparison: Document, number_of: int, what: str) -> str:
    inside = comparison["within"]
    aa = f" ({_share(inside)} within an arm)" if inside is not None else ""
    return f"{_share(comparison['agreement'])} of {number_of} {what}{aa}"


def _share(found: float | None) -> str:
    return NOTHING if found is None else f"{100 * found:.3g} %"


def _parted(each: Document) -> str:
    sure = f" (margin {each['margin']:.2g})" if each["margin"] is not None else ""
    return f"{each['words']}-word prompt from {each['unit']} {each['first_difference']} on{sure}"


def _more(number_of: int) -> str:
    return f"; and {number_of} more" if number_of > 0 else ""


def difference_text(each: Document) -> str:
    """``engine.vllm.flags.max-num-batched-tokens: 2048 → 128``."""
    base, cand = ("not set" if each[side] is None else each[side] for side in ("base", "cand"))
    return f"{each['key']}: {base} → {cand}"


def lost_text(each: Document) -> str:
    """A run that does not count, and why."""
    return f"{each['cell']}: {each['reason']}"
