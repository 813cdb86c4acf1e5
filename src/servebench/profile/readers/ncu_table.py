"""The table of `ncu --csv`, as launches of kernels with their metrics, in SI units.

Two of ncu's pages are understood. On "raw" a launch is a row, a metric a column, and the first row holds units. On
"details" each metric of a launch is a row of its own, under the name that the section shows. ncu writes messages
between the lines (they begin with "=="), separates thousands in numbers, and scales units as it likes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LARGEST = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
SMALLEST = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3}
PERCENT, OTHER = "%", "other"

_TIME = re.compile(r"([num]?)s(?:econd)?")
_RATE = re.compile(r"([KMGTP]?)\w+?(?:/([num]?)s(?:econd)?)?")


@dataclass(slots=True)
class KernelLaunch:
    """One profiled launch.

    Attributes:
        metrics: values by name, then by whether they are per cent (`PERCENT`) or not (`OTHER`): the details page calls
            a bandwidth and its share of the peak the same. Seconds, bytes, hertz; a metric that ncu could not measure
            ("n/a") is left out.
    """

    kernel: str
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)

    def get(self, kind: str, *names: str) -> float | None:
        """The first of some metrics that was measured; `kind` as in `metrics`."""
        found = (self.metrics.get(name, {}).get(kind) for name in names)
        return next((value for value in found if value is not None), None)

    def add(self, name: str, unit: str, text: str) -> None:
        """Note a metric as ncu wrote it."""
        value = number(text)
        if value is not None:
            self.metrics.setdefault(name, {})[PERCENT if unit == "%" else OTHER] = value * factor(unit)


def read_launches(path: Path) -> list[KernelLaunch]:
    """Read a log or a table of ncu.

    Raises:
        OSError: it cannot be read.
        ValueError: there is no table, with what ncu says instead.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    launches: dict[tuple[str, str], KernelLaunch] = {}
    table = False
    for header, units, row in _rows(text):
        table = True
        cells = dict(zip(header, row, strict=False))
        key = (cells["ID"], cells.get("Process ID", ""))
        launch = launches.setdefault(key, KernelLaunch(cells.get("Kernel Name", "")))
        if "Metric Name" in cells:
            launch.add(cells["Metric Name"], cells.get("Metric Unit", ""), cells.get("Metric Value", ""))
        else:
            for name, value in cells.items():
                launch.add(name, units.get(name, ""), value)
    if not table:
        raise ValueError(f"no kernel was profiled: {complaint(text) or 'no launch had a name that was asked for'}")
    return list(launches.values())


def _rows(text: str) -> Iterator[tuple[list[str], dict[str, str], list[str]]]:
    """The header and the units that hold for each row, and the row."""
    header: list[str] = []
    units: dict[str, str] = {}
    lines = (line for line in text.splitlines() if line.startswith('"'))
    for row in csv.reader(lines):
        if row[0] == "ID":
            header, units = row, {}
        elif header and row[0] == "":
            units = dict(zip(header, row, strict=False))
        elif header and row[0].isdigit() and len(row) <= len(header):
            yield header, units, row


def complaint(text: str) -> str:
    """What ncu says went wrong, in its own words; empty if nothing."""
    found = re.findall(r"^==(?:ERROR|WARNING)== *(.+)$", text, re.MULTILINE)
    return " ".join(found[:2]).strip()


def number(text: str) -> float | None:
    """A number as ncu prints it, with separated thousands; None for what is none."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def factor(unit: str) -> float:
    """What one of this unit is in seconds, bytes, hertz, ... or in the unit itself."""
    if found := _TIME.fullmatch(unit):
        return SMALLEST[found[1]]
    if found := _RATE.fullmatch(unit):
        return LARGEST[found[1]] / SMALLEST[found[2] or ""]
    return 1.0
