"""The windows of a run directory: reads what is stored beside the run, and answers for each window.

What is damaged or missing makes that window empty, with the reason; it never costs the run its own report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servebench.analysis.data import RunData, load
from servebench.analysis.profile.answers import Document, Label, answers, blank
from servebench.errors import UsageError
from servebench.profile.stacks import Stacks
from servebench.profile.timeline import Alignment, Timeline
from servebench.profile.tool import FLAME_GRAPH, FOLDER, STACKS, TIMELINE, WINDOW, WINDOW_SCHEMA
from servebench.record.rundir import RunDir

CAPTURED = "captured"
# What comes of files that are not what they should be, down to columns whose values make no sense.
DAMAGE = (UsageError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, OSError)
NO_PLAIN = "the cost of capturing is not known: there is no run of the same load without it"


def summary_of(run_path: Path) -> Document | None:
    """The `profile` section of summary.json; None where the run has no windows.

    Shape: {"tool", "version", "windows": [answers of each, in the order in which they were captured]}.
    """
    folder = run_path / FOLDER
    paths = sorted(path.parent for path in folder.glob(f"*/{WINDOW}"))
    if not paths:
        return None
    stored = sorted(((path, _read(path)) for path in paths), key=lambda each: (_began(each[1]), each[0].name))
    windows = [answers_of(path, document) for path, document in stored]
    return {"tool": windows[0]["tool"], "version": windows[0]["version"], "windows": windows}


def answers_of(path: Path, document: Mapping[str, Any] | None = None) -> Document:
    """The answers of the window in the folder `path`.

    Args:
        document: its window.json, where that was read already.
    """
    found = _read(path) if document is None else document
    label = _label(path, found)
    try:
        return _answers(path, found, label)
    except DAMAGE as error:
        return blank(label, f"the window's files are damaged: {_told(error, path)}")


def _label(path: Path, found: Mapping[str, Any]) -> Label:
    facts = found.get("facts")
    version = facts.get("version") if isinstance(facts, Mapping) else None  # the tool knows better once it has run
    return Label(
        found.get("name") or path.name, found.get("kind") or "free", found.get("tool"), version or found.get("version")
    )


def _answers(path: Path, found: Mapping[str, Any], label: Label) -> Document:
    if found.get("damage"):
        return blank(label, found["damage"])
    facts = dict(found.get("facts") or {})
    facts["flame_graph"] = FLAME_GRAPH if (path / FLAME_GRAPH).exists() else None
    timeline = Timeline.read(path / TIMELINE) if (path / TIMELINE).exists() else None
    stacks = Stacks.read(path / STACKS, _stated(facts)) if (path / STACKS).exists() else None
    run, missing = _run(path / CAPTURED)
    plain, no_plain = _run(_plain_path(path, found))
    document = answers(
        timeline,
        name=label.name,
        kind=label.kind,
        tool=label.tool,
        version=label.version,
        start_ns=found.get("start_ns"),
        end_ns=found.get("stop_asked_ns"),
        run=run,
        plain=plain,
        same_moment=_is_the_run_s_own(found),
        stacks=stacks,
        facts=facts,
    )
    return _explained(document, found.get("reason"), [missing, no_plain])


def _stated(facts: Mapping[str, Any]) -> Alignment | None:
    """How the tool brought its samples onto the run's clock: folded stacks themselves tell of no instants."""
    found = facts.get("alignment")
    return None if found is None else Alignment(**found)


def _explained(document: Document, reason: str | None, missing: list[str | None]) -> Document:
    """The answers with what the capture itself said of its failure, and what could not be read."""
    if reason and document["empty"]:
        document["reason"] = reason
    elif reason:
        document["notes"] = [*document["notes"], reason]
    document["notes"] = [*document["notes"], *(text for text in missing if text)]
    if document["overhead"] is None and not document["empty"]:
        document["overhead"] = {"rows": [], "text": NO_PLAIN}
    return document


def _plain_path(path: Path, found: Mapping[str, Any]) -> Path:
    """Where the same load ran without the capture: in a folder of its own, or as the run itself."""
    return path.parent.parent if _is_the_run_s_own(found) else path / str(found.get("plain", "plain"))


def _is_the_run_s_own(found: Mapping[str, Any]) -> bool:
    """Whether the window captured the scenario's own load, of which the run itself is the plain one."""
    return found.get("plain", "plain") is None


def _run(path: Path) -> tuple[RunData | None, str | None]:
    """A run of the window, or why there is none."""
    if not path.exists():
        return None, None
    try:
        return load(RunDir.open(path)), None
    except DAMAGE as error:
        return None, f"the window's run {path.name} cannot be read: {_told(error, path)}"


def _read(path: Path) -> dict[str, Any]:
    """window.json; of a damaged one its "damage"."""
    try:
        document = json.loads((path / WINDOW).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return {"damage": f"{WINDOW} is damaged: {error}"}
    if not isinstance(document, dict) or document.get("schema") != WINDOW_SCHEMA:
        return {"damage": f"{WINDOW} is of another version of servebench"}
    return document


def _told(error: Exception, path: Path) -> str:
    """The error without the way to the folder, so that a summary is the same wherever its run lies."""
    return str(error).replace(f"{path}/", "").replace(str(path), path.name) or type(error).__name__


def _began(document: Mapping[str, Any]) -> int:
    """When it was asked for; what never was comes last."""
    began = document.get("start_asked_ns")
    return began if isinstance(began, int) else 1 << 63
