"""Every sample of a level (power, clock, queue) joined to the phase of the run at its instant.

Shape of `phases_joined.tables` in summary.json, one entry a series that has a sample in the measured window::

    {"source": "nvml", "device": "gpu-0", "name": "power_w", "unit": "W", "n": 1200,
     "period_ms": 50.0 | null,                  # median time between samples
     "longest_gap_ms": 61.3,                    # inside the measured window, edges included
     "all": {"n": 1200, "mean": 410.2, "p50": 415.0, "p95": 612.0},
     "given": {"idle": {"n": 0, "mean": null, "p50": null, "p95": null}, "prefill_only": {...}, "decode_only": {...},
               "mixed": {...}}}                  # the n of the phases add up to n

Quantiles are nearest rank over the samples; counters are not here, since only their differences mean anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.data import Series
from servebench.analysis.facts import Facts
from servebench.analysis.phases import PHASES, Codes, Phases
from servebench.analysis.quantiles import Quantile, rank
from servebench.analysis.rounding import milliseconds, rounded
from servebench.analysis.sampling import longest_gap

P50, P95 = Quantile.parse("p50"), Quantile.parse("p95")
_GPU = {
    "power_w": "W",
    "power_avg_w": "W",
    "util_gpu": "%",
    "util_mem": "%",
    "gpm_sm": "share",
    "gpm_tensor": "share",
    "gpm_dram": "share",
    "clock_sm_mhz": "MHz",
    "clock_mem_mhz": "MHz",
    "mem_used_bytes": "bytes",
    "temp_gpu_c": "°C",
    "temp_mem_c": "°C",
    "pcie_rx_kbps": "kB/s",
    "pcie_tx_kbps": "kB/s",
}
UNITS = {
    **{(source, name): unit for source in ("nvml", "remote") for name, unit in _GPU.items()},
    ("server", "running"): "requests",
    ("server", "waiting"): "requests",
    ("server", "kv_usage"): "share",
    ("host", "cpu_busy_share"): "share",
    ("host", "cpu_pressure_some_avg10"): "%",
}  # the levels that are worth a table, in the order of the report


@dataclass(frozen=True, slots=True)
class Level:
    """Samples of a level.

    Attributes:
        n: how many.
        mean, p50, p95: in the series' unit; None without samples.
    """

    n: int
    mean: float | None
    p50: float | None
    p95: float | None

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Level:
        """Describe samples in any order."""
        if not values.size:
            return cls(0, None, None, None)
        ordered = np.sort(values)
        p50, p95 = (float(ordered[rank(q, ordered.size) - 1]) for q in (P50, P95))
        return cls(int(ordered.size), float(ordered.mean()), p50, p95)

    def document(self) -> dict[str, Any]:
        """As in summary.json."""
        return {"n": self.n, "mean": rounded(self.mean), "p50": rounded(self.p50), "p95": rounded(self.p95)}


@dataclass(frozen=True, slots=True)
class Table:
    """A series given the phase.

    Attributes:
        source, device, name, unit: of the series.
        whole: all its samples.
        given: by phase.
        period: median time between its samples, ns; None with fewer than two.
        gap: longest time without a sample, ns.
    """

    source: str
    device: str
    name: str
    unit: str
    whole: Level
    given: dict[str, Level]
    period: float | None
    gap: int | None


def given_phase(values: NDArray[np.float64], codes: Codes) -> dict[str, Level]:
    """Levels by phase; `codes` are those of the samples' instants."""
    return {name: Level.of(values[codes == code]) for code, name in enumerate(PHASES)}


def tables(facts: Facts, phases: Phases) -> tuple[Table, ...]:
    """The tables of all series with a sample in the measured window, in the order of `UNITS`, then by device."""
    order = {key: place for place, key in enumerate(UNITS)}
    keys = [key for key in facts.run.telemetry if (key[0], key[2]) in order]
    keys.sort(key=lambda key: (order[key[0], key[2]], key[1]))
    found = (_table(facts, phases, key) for key in keys)
    return tuple(table for table in found if table is not None)


def _table(facts: Facts, phases: Phases, key: tuple[str, str, str]) -> Table | None:
    start, end = facts.window.warmup_end, facts.window.throughput_end
    inside: Series = facts.run.telemetry[key].within(start, end)
    if not inside.t.size:
        return None
    source, device, name = key
    return Table(
        source=source,
        device=device,
        name=name,
        unit=UNITS[source, name],
        whole=Level.of(inside.value),
        given=given_phase(inside.value, phases.at(inside.t)),
        period=float(np.median(np.diff(inside.t))) if inside.t.size > 1 else None,
        gap=longest_gap(inside.t, start, end),
    )


def describe(facts: Facts, phases: Phases) -> list[dict[str, Any]]:
    """`phases_joined.tables` of summary.json."""
    return [_document(table) for table in tables(facts, phases)]


def _document(table: Table) -> dict[str, Any]:
    return {
        "source": table.source,
        "device": table.device,
        "name": table.name,
        "unit": table.unit,
        "n": table.whole.n,
        "period_ms": milliseconds(table.period),
        "longest_gap_ms": milliseconds(table.gap),
        "all": table.whole.document(),
        "given": {name: level.document() for name, level in table.given.items()},
    }
