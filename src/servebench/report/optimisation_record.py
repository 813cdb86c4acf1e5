"""record.md: what was changed, why, what it did and how to do it again; to be handed to a colleague as it is."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from servebench.report import effect_words as words
from servebench.report import record_setting as setting
from servebench.report.figures import plural
from servebench.report.markdown import bullets, code, table

Document = Mapping[str, Any]

RECORD = "record.md"
BANNERS = {
    "simulated": "**SIMULATED**: these figures come from the simulated engine. They show what its step model does, "
    "and say nothing about a real server or GPU.",
    "random_weights": "**RANDOM WEIGHTS**: the model has random weights, so that its text means nothing; its speed is "
    "that of its shape.",
}


def write_record(path: Path, document: Document) -> Path:
    """Write record.md into the experiment's directory and return its path.

    Args:
        path: the directory, from whose runs the environment is read.
        document: the content of experiment.json, with its result.
    """
    file = path / RECORD
    file.write_text(write(document, _example(path, document["result"])), "utf-8")
    return file


def _example(path: Path, result: Document) -> Document | None:
    """The summary of a run of the base, else of any arm; None when no run has ended."""
    arms = sorted(result["arms"].values(), key=lambda arm: arm["role"] != "base")
    for run in (run for arm in arms for run in arm["paths"]):
        file = path / run / "summary.json"
        if file.exists():
            found: Document = json.loads(file.read_text("utf-8"))
            return found
    return None


def write(document: Document, summary: Document | None = None) -> str:
    """The record as Markdown.

    Args:
        document: the content of experiment.json, with its result.
        summary: of one of its runs, for the environment; None when there is none.
    """
    result, asked = document["result"], document["question"]
    parts = [
        *_opening(result),
        ("Problem", setting.problem(asked)),
        ("Baseline", _baseline(result)),
        ("Hypothesis", _hypothesis(result)),
        ("Change", _change(result)),
        ("Effect", _effect(result)),
        ("Correctness", bullets(line for line, _ in words.correctness_lines(result))),
        ("Side effects", _side_effects(result)),
        ("Environment", setting.environment(summary, asked)),
        ("Limits", bullets(_limits(result, summary))),
        ("How to repeat", _repeat(document)),
        ("Files", _files(result)),
    ]
    return "\n\n".join(text if isinstance(text, str) else f"## {text[0]}\n\n{text[1]}" for text in parts) + "\n"


def _opening(result: Document) -> list[str]:
    """Title, banners, verdict and the answers."""
    answers = words.answers(result)
    changes = "; ".join(dict.fromkeys(answer.change for answer in answers))
    status = result["verdict"]["status"]
    raised = [each for each in result["verdict"]["codes"] if each["level"] != "ok"]
    doubts = f" ({plural(len(raised), 'check')} not passed, see [Limits](#limits))" if raised else ""
    verdict = f"Verdict on the experiment: **{status}**{doubts}"
    banners = [f"> {text}" for key, text in BANNERS.items() if result[key]]
    found = [f"**{answer.sentence}**" for answer in answers]
    return [f"# {result['design']['name']}: {changes}", *banners, *found, verdict]


def _baseline(result: Document) -> str:
    """The base arm's settings and figures."""
    name, arm = next((name, arm) for name, arm in result["arms"].items() if arm["role"] == "base")
    rows = [_spread(figure, arm["figures"].get(figure) or []) for figure in result["design"]["family"]]
    head = f"`{name}`: {_settings(arm)}. Medians over {plural(arm['used'], 'run')}:"
    return f"{head}\n\n{table(['figure', 'median', 'least', 'most'], rows)}"


def _spread(figure: str, values: Sequence[float | None]) -> list[str]:
    known = [value for value in values if value is not None]
    ends = (median(known), min(known), max(known)) if known else (None, None, None)
    return [words.title(figure), *(words.measured(figure, end) for end in ends)]


def _settings(arm: Document) -> str:
    told = [*arm["overrides"], *(f"{key}={arm[key]}" for key in ("endpoint", "model") if arm[key])]
    return ", ".join(code(each) for each in told) or "the scenario as it is"


def _hypothesis(result: Document) -> str:
    return result["design"]["hypothesis"] or "None was written down before the first run."


def _change(result: Document) -> str:
    """What the arms set, and everything else in which their runs differ."""
    arms = [[code(name), arm["role"], _settings(arm), str(arm["used"])] for name, arm in result["arms"].items()]
    others = [each for each in result["differences"] if not each["named"]]
    lines = [f"{code(each['arm'])}, {each['kind']}: {words.difference_text(each)}" for each in others]
    named = ", ".join(code(key) for key in result["design"]["variables"])
    told = f"Changed on purpose: {named or 'nothing that has a name'}. "
    found = f"What else differs between the arms' runs:\n\n{bullets(lines)}" if lines else _nothing_else(result)
    return f"{table(['arm', 'role', 'settings', 'runs used'], arms)}\n\n{told}{found}"


def _nothing_else(result: Document) -> str:
    if all(arm["used"] for arm in result["arms"].values()):
        return "Nothing else differs."
    return "Whether anything else differs is not known, as an arm has no run that can be compared."


def _effect(result: Document) -> str:
    """A table for each candidate, what was tested before what was estimated; then the noise floor and the design."""
    several = len(result["comparisons"]) > 1
    parts = [text for each in result["comparisons"] for text in _comparison(each, several)]
    return "\n\n".join([*parts, *_noise(result), bullets(words.design_lines(result)), _every_run(result)])


def _every_run(result: Document) -> str:
    """The tested figures of each run, from which the effects can be checked by hand."""
    rows = [
        [words.title(figure), code(name), ", ".join(words.measured(figure, value) for value in values)]
        for figure in result["design"]["family"]
        for name, arm in result["arms"].items()
        if (values := arm["figures"].get(figure))
    ]
    return f"Every run that is used, in the order of the repeats:\n\n{table(['figure', 'arm', 'runs'], rows)}"


def _comparison(comparison: Document, several: bool) -> Iterator[str]:
    if several:
        yield f"### {comparison['cand']} against {comparison['base']}"
    yield "Tested:"
    heads = ["figure", "role", comparison["base"], comparison["cand"], "change", "interval", "A/A floor", "p"]
    yield table([*heads, "adjusted p", "n", "verdict"], [_tested(effect) for effect in words.tested(comparison)])
    yield bullets(f"{words.title(effect['figure'])}: {effect['reason']}" for effect in words.tested(comparison))
    if estimates := words.estimates(comparison):
        yield "Estimated, not tested (no verdict rests on these):"
        rows = [_estimate(effect) for effect in estimates]
        yield table(["figure", comparison["base"], comparison["cand"], "change", "interval", "A/A floor", "n"], rows)


def _tested(effect: Document) -> list[str]:
    start, end = _sizes(effect)
    p = [words.probability(effect[key]) for key in ("p", "p_adjusted")]
    return [words.title(effect["figure"]), effect["role"], *start, *p, end, f"**{effect['verdict']}**"]


def _estimate(effect: Document) -> list[str]:
    start, end = _sizes(effect)
    return [words.title(effect["figure"]), *start, end]


def _sizes(effect: Document) -> tuple[list[str], str]:
    sides = [words.value(effect, side) for side in ("base", "cand")]
    runs = effect["n"] if effect["paired"] else f"{effect['n_base']} and {effect['n_cand']}"
    return [*sides, words.change(effect), words.interval(effect), words.floor(effect)], str(runs)


def _noise(result: Document) -> Iterator[str]:
    """What two equal arms showed."""
    found = result["noise_floor"]
    if found is None:
        yield "The noise between equal arms (A/A) was not measured; `--aa` would."
        return
    effects = [effect for effect in found["effects"] if effect["role"] in words.TESTED]
    shown = ", ".join(f"{words.title(effect['figure'])} {words.change(effect)}" for effect in effects)
    yield (
        f"A/A: {code(found['arm'])}, the base run a second time in every repeat, against the base: {shown or 'none'}. "
        "The floor is what the median of as many pairs stays below in about nine of ten experiments in which nothing "
        "is changed."
    )


def _side_effects(result: Document) -> str:
    known, missing = words.side_effects(result)
    names = list(result["arms"])
    candidates = [name for name, arm in result["arms"].items() if arm["role"] == "candidate"]
    rows = [_side(row, names, candidates) for row in known]
    heads = ["median of the runs", *names, *(f"{name} to base" for name in candidates)]
    absent = bullets(f"not measured: {title} ({reason})" for title, reason in missing)
    return "\n\n".join(part for part in (table(heads, rows) if rows else "", absent) if part) or "Not described."


def _side(row: Document, names: Sequence[str], candidates: Sequence[str]) -> list[str]:
    values = [words.amount(row["arms"].get(name), row["unit"]) for name in names]
    return [row["title"], *values, *(words.side_ratio(row, name) for name in candidates)]


def _limits(result: Document, summary: Document | None) -> Iterator[str]:
    """What a reader must know before believing the effects."""
    for each in result["verdict"]["codes"]:
        if each["level"] != "ok":
            yield f"**{each['level']}** {code(each['code'])}: {each['text']}" + (each["next"] and f" → {each['next']}")
    yield from (f"lost: {words.lost_text(each)}" for each in result["pairs"]["lost"])
    yield from setting.limits(result, summary)


def _repeat(document: Document) -> str:
    command = shlex.join(document["command"])
    return (
        f"```sh\n{command}\n```\n\nThe seeds of the plans and of the order are part of the question, so that the same "
        "requests are sent at the same instants; the text of the prompts is new in every run (a fresh salt). "
        "`servebench report` on this directory computes the result again from the stored runs, offline. "
        f"The scenario is stored whole in `experiment.json`. Made with servebench {document['servebench']}."
    )


def _files(result: Document) -> str:
    runs = [f"{code(name)}: {', '.join(arm['paths'])}" for name, arm in result["arms"].items()]
    known = ["`experiment.json`: the question, every run's verdict, and this result in figures"]
    return bullets([*known, *(f"runs of {text}" for text in runs)])
