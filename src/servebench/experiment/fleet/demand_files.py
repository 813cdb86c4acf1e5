"""Demands in files: a day as rates by the hour, or a trace of arrivals; both CSV with a header line."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from servebench.errors import UsageError, did_you_mean
from servebench.experiment.fleet.demand import DAY, Demand, Step, of_shape
from servebench.units import format_duration, parse_rate

HOUR = 3600.0
INSTANTS = ("timestamp", "time", "arrived_at", "arrival", "t")
RATES = ("rate", "requests_per_s")
SCALES = {"_ms": 1e-3, "_us": 1e-6, "_ns": 1e-9}

MOST_BINS = 5_000_000  # of a trace: ten years in minutes; its instants are no seconds then

Row = tuple[int, dict[str, str]]  # its line in the file, and its fields by column


def read_daily(path: Path) -> Demand:
    """The demand of a CSV with the columns `hour` (0 to 24) or `time` (08:30, or date and time), and `rate`.

    A row holds until the next one, the last one until the first one's time on the next day (with dates: as long as the
    shortest row before it).
    Rates are per second, or say their period: 600/min.

    Raises:
        UsageError: the file cannot be read, has other columns, or its rows are not in order.
    """
    rows = _rows(path)
    clock, rate = _column(path, rows, ("hour", "time")), _column(path, rows, RATES)
    instants = [_hours(path, line, row[clock]) for line, row in rows]
    rates = [_rate(path, line, row[rate]) for line, row in rows]
    ends = [*instants[1:], _last_end(path, instants)]
    for (line, _), start, end in zip(rows, instants, ends, strict=True):
        if end <= start:
            raise UsageError(f"{path}, line {line}: the times must rise from row to row")
    steps = [Step(s - instants[0], e - s, r, r) for s, e, r in zip(instants, ends, rates, strict=True)]
    return of_shape(steps, f"{path.name} (rates by the row, the busiest moment inside a row is not known)")


def read_arrivals(path: Path, bin_s: float) -> Demand:
    """The demand of a CSV with one arrival a row: the busiest of all bins of `bin_s` seconds is the peak.

    The instants are in the column `timestamp`, `time` or the like, else in the first one: dates with times, or numbers
    of seconds (milliseconds and so on when the column's name ends in _ms, _us or _ns).

    Raises:
        UsageError: the file cannot be read or holds no instants, or spans less than one bin.
    """
    if not 0 < bin_s <= HOUR:
        raise UsageError(f"the bin must be above 0 and at most 1h, not {format_duration(bin_s)}")
    rows = _rows(path)
    column = _instants(rows)
    scale = next((by for end, by in SCALES.items() if column.lower().endswith(end)), 1.0)
    at = sorted(_seconds(path, line, row[column]) * scale for line, row in rows)
    span = at[-1] - at[0]
    if span < bin_s:
        raise UsageError(f"{path} spans less than one bin of {format_duration(bin_s)}")
    if span / bin_s > MOST_BINS:
        raise UsageError(
            f"{path} spans {span / HOUR / DAY:,.0f} days; if {column} holds milliseconds, call it {column}_ms (or _us, "
            "_ns), else take a longer --bin"
        )
    source = f"{path.name} ({len(at):,} arrivals; the peak is its busiest {format_duration(bin_s)})"
    return of_shape(_by_the_hour([t - at[0] for t in at], bin_s), source)


def _by_the_hour(at: Sequence[float], bin_s: float) -> list[Step]:
    """Hourly steps with the busiest whole bin of each; what is left at the end and fills no bin is left out."""
    bins = [0] * int(at[-1] / bin_s)
    for t in at:
        if (index := int(t / bin_s)) < len(bins):
            bins[index] += 1
    each = max(1, round(HOUR / bin_s))
    return [_step(bins[first : first + each], first, bin_s) for first in range(0, len(bins), each)]


def _step(counts: Sequence[int], first: int, bin_s: float) -> Step:
    hours = len(counts) * bin_s / HOUR
    return Step(first * bin_s / HOUR, hours, sum(counts) / (len(counts) * bin_s), max(counts) / bin_s)


def _rows(path: Path) -> list[Row]:
    """The rows that are not blank, with the line on which each ends."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            read = [(reader.line_num, row) for row in reader]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is no CSV text with a header line") from error
    rows = [(line, _stripped(path, line, row)) for line, row in read]
    found = [(line, row) for line, row in rows if any(row.values())]
    if not found:
        raise UsageError(f"{path} holds no rows below its header line")
    return found


def _stripped(path: Path, line: int, row: Mapping[str | None, Any]) -> dict[str, str]:
    """A row without the blanks around its fields; `csv` puts fields beyond the header's under None."""
    if any(field.strip() for field in row.get(None) or []):
        raise UsageError(f"{path}, line {line}: it has more fields than the header line (a number with a comma in it?)")
    return {name.strip(): (value or "").strip() for name, value in row.items() if name is not None}


def _column(path: Path, rows: Sequence[Row], names: Sequence[str]) -> str:
    """The column that has one of these names, whatever its capitals."""
    present = list(rows[0][1])
    found = next((column for column in present if column.lower() in names), None)
    if found is None:
        columns = ", ".join(present)
        near = did_you_mean(present[0], names) if len(present) == 1 else ""
        raise UsageError(f'{path} has no column "{names[0]}"; its columns are {columns}{near}')
    return found


def _instants(rows: Sequence[Row]) -> str:
    """The column of the arrivals' instants: the one that is called so, else the first."""
    present = rows[0][1]
    named = {name.lower(): name for name in present}
    known = [*INSTANTS, *(name + unit for name in INSTANTS for unit in SCALES)]
    return next((named[name] for name in known if name in named), next(iter(present)))


def _rate(path: Path, line: int, text: str) -> float:
    try:
        return parse_rate(text)
    except ValueError as error:
        raise UsageError(f"{path}, line {line}: {error}") from None


def _hours(path: Path, line: int, text: str) -> float:
    """Hours of the day, or since the epoch where a date is given."""
    number = _finite(text)
    return _clock(path, line, text) / HOUR if number is None else number


def _seconds(path: Path, line: int, text: str) -> float:
    number = _finite(text)
    return _clock(path, line, text) if number is None else number


def _finite(text: str) -> float | None:
    """A plain number; None for anything else, `nan` and `inf` too."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _clock(path: Path, line: int, text: str) -> float:
    """Seconds from ``08:30`` or ``2023-11-16 18:15:46.68``; no zone is taken as one without changes of the clock."""
    for form in ("%H:%M", "%H:%M:%S"):
        try:
            found = datetime.strptime(text, form)
        except ValueError:
            continue
        return found.hour * HOUR + found.minute * 60 + found.second
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f'{path}, line {line}: expected a time such as 8, 08:30 or 2026-11-30 08:30, not "{text}"'
        ) from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _last_end(path: Path, instants: Sequence[float]) -> float:
    """When the last row ends."""
    if instants[-1] < DAY:
        return instants[0] + DAY
    if len(instants) < 2:
        raise UsageError(f"{path}: one row with a date says no length; give two or more")
    return instants[-1] + min(b - a for a, b in pairwise(instants))
