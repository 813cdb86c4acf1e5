"""A run in other tools' formats, one module a format; what others have installed is found by its entry point."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from servebench.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from servebench.report.exports.exporter import Exporter

GROUP = "servebench.exporters"

# Found without their entry points, which an editable install made before them lacks, and told without importing them.
OURS = {
    "csv": "folder: requests.csv and telemetry.csv, times in ns and ms, and columns.md, which explains them",
    "parquet": "folder: the recorded tables and the plan as they are, and summary.json",
    "hlog": "HDR interval log of the cohort's latencies, one tag a metric, in ns",
    "vllm": "JSON as `vllm bench serve --save-result --save-detailed` writes it, by vLLM's formulas",
    "prometheus": "text exposition: gauges for a push gateway",
    "markdown": "one page: verdict, latencies, throughput, outcomes, environment",
}


def find(name: str) -> Exporter:
    """Import the exporter of a format; our own formats keep their names, whatever else is installed.

    Raises:
        UsageError: there is none, with the nearest name; or an installed one cannot be loaded.
    """
    if name in OURS:
        ours: Exporter = importlib.import_module(f"{__name__}.{name}").exporter
        return ours
    others = _others()
    if name not in others:
        known = [*OURS, *others]
        raise UsageError(f'no format "{name}": expected {", ".join(known)}{did_you_mean(name, known)}')
    return _load(others[name])


def _others() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return {entry.name: entry for entry in found if entry.name not in OURS}


def _load(entry: EntryPoint) -> Exporter:
    from servebench.report.exports.exporter import Exporter

    who = f'the exporter "{entry.name}" ({entry.value})'
    try:
        found = entry.load()
        found = found() if isinstance(found, type) else found
    except Exception as error:  # somebody else's module may fail in any way
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{who} cannot be loaded: {said}") from error
    if not isinstance(found, Exporter):
        raise UsageError(f"{who} is no exporter: it needs name, help and write(run, summary, out)")
    return found
