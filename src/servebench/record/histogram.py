"""HDR histograms of durations: for merging and exchange, never for the figures of a report, which come from raw stamps.

The unit is the nanosecond, the range 1 µs to 1 h, the precision 3 significant digits; the smallest step is 512 ns, so
the three digits hold from 1 ms on and a value below is good to half a microsecond.

hdrhistogram supplies the geometry and the coding that other HdrHistogram tools read. Counting is done here, on 64-bit
counters, because the library drops what is out of range without a word, and is slow one value at a time; ranks are
found here, because it rounds them half up in floating point; log lines are written here, because it has no tags, floors
the maximum and cannot write a start time.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOWEST_NS = 1_000
HIGHEST_NS = 3_600_000_000_000
DIGITS = 3

_UNIT_BITS = LOWEST_NS.bit_length() - 1
_SUB_BITS: int = (2 * 10**DIGITS - 1).bit_length()
_HALF_BITS = _SUB_BITS - 1
_MASK = ((1 << _SUB_BITS) - 1) << _UNIT_BITS

_NS_PER_MS = 1e6

Int64s = NDArray[np.int64]


class Histogram:
    """Counts of durations in ns, by HDR bucket.

    Attributes:
        below, above: how many values were outside the range and were counted as the nearest bound.
    """

    def __init__(self) -> None:
        self._counts: Int64s = np.zeros(int(_index(np.array([HIGHEST_NS]))[0]) + 1, np.int64)
        self.below = 0
        self.above = 0

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self._counts.sum())

    def record_many(self, durations_ns: Int64s) -> None:
        """Count int64 durations in ns, any number of them."""
        self.below += int(np.count_nonzero(durations_ns < LOWEST_NS))
        self.above += int(np.count_nonzero(durations_ns > HIGHEST_NS))
        clamped = np.clip(durations_ns, LOWEST_NS, HIGHEST_NS)
        self._counts += np.bincount(_index(clamped), minlength=len(self._counts))

    def merge(self, other: Histogram) -> None:
        """Add all that `other` holds."""
        self._counts += other._counts
        self.below += other.below
        self.above += other.above

    def percentile(self, numerator: int, denominator: int = 100) -> int | None:
        """Percentile by nearest rank: the value of rank ceil(n · numerator / denominator), in integers.

        Args:
            numerator, denominator: 99 for p99; 999, 1000 for p99.9.

        Returns:
            the highest value, in ns, that shares the bucket of that rank, as HdrHistogram does; None without values.
        """
        total = self.total
        if not total:
            return None
        rank = max(1, -(-numerator * total // denominator))
        return _highest_equivalent(int(np.searchsorted(np.cumsum(self._counts), rank)))

    @property
    def max(self) -> int | None:
        """Highest value that shares the uppermost bucket in use, in ns; None without values."""
        used = np.flatnonzero(self._counts)
        return _highest_equivalent(int(used[-1])) if len(used) else None

    def encode(self) -> str:
        """The counts as a compressed V2 histogram in base64; `below` and `above` are not part of that format."""
        hdr = _new_hdr()
        for index in np.flatnonzero(self._counts).tolist():
            if not hdr.record_value(_lowest_equivalent(index), int(self._counts[index])):
                raise AssertionError("a value of our own range is outside hdrhistogram's")
        return str(hdr.encode().decode("ascii"))

    @classmethod
    def decode(cls, text: str) -> Histogram:
        """Read what `encode` wrote.

        Raises:
            ValueError: not a histogram, or one of another range or precision.
        """
        from hdrh.histogram import HdrHistogram

        try:
            hdr = HdrHistogram.decode(text)
        except Exception as error:  # the library lets errors of base64, zlib, struct and its own through
            raise ValueError(f"not an encoded histogram: {error}") from error
        if (hdr.lowest_trackable_value, hdr.highest_trackable_value, hdr.significant_figures) != _GEOMETRY:
            raise ValueError("the histogram has another range or precision than 1 us to 1 h at 3 digits")
        histogram = cls()
        for item in hdr.get_recorded_iterator():
            histogram._counts[_index(np.array([item.value_iterated_to]))] += item.count_at_value_iterated_to
        return histogram


_GEOMETRY = (LOWEST_NS, HIGHEST_NS, DIGITS)


def _new_hdr() -> Any:
    from hdrh.histogram import HdrHistogram

    return HdrHistogram(*_GEOMETRY, word_size=8)


def _index(values: Int64s) -> Int64s:
    """Number of the counter of each value; the values are inside the range."""
    _, bits = np.frexp((values | _MASK).astype(np.float64))  # exact: an hour of nanoseconds has 42 bits
    bucket = bits.astype(np.int64) - _UNIT_BITS - _SUB_BITS
    sub: Int64s = values >> (bucket + _UNIT_BITS)
    index: Int64s = (bucket << _HALF_BITS) + sub
    return index


def _lowest_equivalent(index: int) -> int:
    bucket = max((index >> _HALF_BITS) - 1, 0)
    sub = index - (bucket << _HALF_BITS)
    return sub << (bucket + _UNIT_BITS)


def _highest_equivalent(index: int) -> int:
    return _lowest_equivalent(index + 1) - 1


def write_hlog(path: Path, series: Iterable[tuple[str, float, float, Histogram]]) -> None:
    """Write an HdrHistogram interval log (format 1.3), in nanoseconds, its Interval_Max column in milliseconds.

    Args:
        path: the file; replaced.
        series: (tag, start of the interval in seconds since the epoch, its length in seconds, histogram), in the order
            of the starts. A tag holds no comma and no white space.

    Raises:
        ValueError: a bad tag, or starts out of order, which readers would take for the end of the log.
    """
    previous = 0.0
    with path.open("w", encoding="ascii") as file:
        file.write("#[Histogram log format version 1.3]\n")
        for tag, start, length, histogram in series:
            if not previous:
                file.write(_start_time(start))
            if start < previous or not tag or any(c.isspace() or c == "," for c in tag):
                raise ValueError(f"interval {tag!r} at {start}: out of order, or a tag that the format cannot hold")
            file.write(_interval(tag, start, length, histogram))
            previous = start


def _start_time(start: float) -> str:
    when = datetime.datetime.fromtimestamp(start, datetime.UTC).isoformat(timespec="milliseconds")
    legend = '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'
    return f"#[StartTime: {start:.3f} (seconds since epoch), {when}]\n{legend}"


def _interval(tag: str, start: float, length: float, histogram: Histogram) -> str:
    clamped = f"#[Clamped: {tag} below={histogram.below} above={histogram.above}]\n"
    line = f"Tag={tag},{start:.3f},{length:.3f},{(histogram.max or 0) / _NS_PER_MS:.3f},{histogram.encode()}\n"
    return (clamped if histogram.below or histogram.above else "") + line
