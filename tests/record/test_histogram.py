"""The histogram against hdrhistogram itself, against sorted values, and through its own log reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
from hypothesis import given, settings
from hypothesis import strategies as st

from servebench.record.histogram import HIGHEST_NS, LOWEST_NS, Histogram, write_hlog

durations = st.lists(st.integers(LOWEST_NS, HIGHEST_NS), min_size=1, max_size=200)
START = 1_700_000_000.0


def of(*values: int) -> Histogram:
    histogram = Histogram()
    histogram.record_many(np.array(values, np.int64))
    return histogram


def new_hdr() -> HdrHistogram:
    return HdrHistogram(LOWEST_NS, HIGHEST_NS, 3)


def counts(hdr: HdrHistogram) -> dict[int, int]:
    return {item.value_iterated_to: item.count_at_value_iterated_to for item in hdr.get_recorded_iterator()}


@given(durations)
@settings(max_examples=8, deadline=None)
def test_every_value_is_counted_where_hdrhistogram_counts_it(values: list[int]) -> None:
    hdr = new_hdr()
    for value in values:
        assert hdr.record_value(value)
    decoded = HdrHistogram.decode(of(*values).encode())
    assert counts(decoded) == counts(hdr)


@given(durations, st.integers(0, 1000))
@settings(deadline=None)
def test_a_percentile_is_the_nearest_rank_to_three_digits(values: list[int], per_mille: int) -> None:
    exact = sorted(values)[max(1, -(-per_mille * len(values) // 1000)) - 1]
    got = of(*values).percentile(per_mille, 1000)
    assert got is not None
    assert exact <= got <= exact + max(512, exact / 1000)


def test_the_rank_is_found_in_integers() -> None:
    histogram = of(*[1_000_000] * 199_800, *[9_000_000] * 200)
    rank_199800 = histogram.percentile(999, 1000)
    assert rank_199800 == pytest.approx(1_000_000, rel=1e-3)  # ceil(0.999 * 200000) in floats would be rank 199801


def test_the_lowest_of_a_few_is_not_rounded_up() -> None:
    low = of(1_000_000, *[2_000_000] * 4).percentile(25)
    assert low == pytest.approx(2_000_000, rel=1e-3)  # ceil(1.25) = 2; hdrhistogram's half-up rule says 1


def test_nothing_recorded_answers_none() -> None:
    assert Histogram().percentile(50) is None
    assert Histogram().max is None
    assert Histogram().total == 0


def test_values_out_of_range_are_clamped_and_counted() -> None:
    histogram = of(-5, 0, 999, 1000, HIGHEST_NS, HIGHEST_NS + 1, 2**62)
    assert (histogram.below, histogram.above, histogram.total) == (3, 2, 7)
    top = histogram.max
    assert top == pytest.approx(HIGHEST_NS, rel=1e-3)


def test_counters_do_not_wrap_at_16_or_32_bits() -> None:
    histogram = of(5_000_000)
    for _ in range(33):
        histogram.merge(histogram)
    assert histogram.total == 2**33
    assert Histogram.decode(histogram.encode()).total == 2**33


@given(durations, durations)
@settings(max_examples=20, deadline=None)
def test_merging_is_recording_all(left: list[int], right: list[int]) -> None:
    merged = of(*left)
    merged.merge(of(*right))
    assert merged.encode() == of(*left, *right).encode()


def test_merging_adds_the_clamps_and_an_empty_one_changes_nothing() -> None:
    histogram = of(1, 5_000_000)
    before = histogram.encode()
    histogram.merge(Histogram())
    assert histogram.encode() == before
    histogram.merge(of(2, HIGHEST_NS * 2))
    assert (histogram.below, histogram.above) == (2, 1)


@given(durations)
@settings(max_examples=20, deadline=None)
def test_encoding_keeps_every_count(values: list[int]) -> None:
    text = of(*values).encode()
    assert Histogram.decode(text).encode() == text


@pytest.mark.parametrize("text", ["", "rubbish", "HISTFAAAAB"])
def test_what_is_no_histogram_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an encoded histogram"):
        Histogram.decode(text)


def test_a_histogram_of_another_range_is_refused() -> None:
    with pytest.raises(ValueError, match="another range"):
        Histogram.decode(HdrHistogram(1, 1_000_000, 2).encode().decode())


def test_the_log_is_read_by_hdrhistograms_own_reader(tmp_path: Path) -> None:
    intervals = [
        ("ttft", START, 1.0, of(5_000_000)),
        ("itl", START, 1.0, of(*range(10_000_000, 11_000_000, 10_000))),
        ("ttft", START + 1.25, 0.75, Histogram()),
        ("itl", START + 1.25, 0.75, of(7)),
    ]
    path = tmp_path / "histograms.hlog"
    write_hlog(path, intervals)
    reader = HistogramLogReader(str(path), new_hdr())
    for tag, start, length, histogram in intervals:
        read = reader.get_next_interval_histogram()
        assert read.get_tag() == tag
        assert read.get_start_time_stamp() == start * 1000
        assert read.get_end_time_stamp() == (start + length) * 1000
        assert read.get_total_count() == histogram.total
    assert reader.get_next_interval_histogram() is None
    assert reader.get_start_time_sec() == START
    reader.close()


def test_a_time_range_of_the_log_can_be_added_up(tmp_path: Path) -> None:
    path = tmp_path / "histograms.hlog"
    write_hlog(path, [("itl", START + second, 1.0, of(*[second * 1_000_000 + 1_000_000] * 3)) for second in range(10)])
    reader = HistogramLogReader(str(path), new_hdr())
    total = new_hdr()
    while reader.add_next_interval_histogram(total, 2.0, 4.0):
        pass
    reader.close()
    assert total.get_total_count() == 9


def test_the_log_states_its_maximum_in_ms_and_its_clamps(tmp_path: Path) -> None:
    path = tmp_path / "histograms.hlog"
    write_hlog(path, [("itl", START, 1.0, of(1, 1_500_000))])
    lines = path.read_text().splitlines()
    assert lines[1].startswith("#[StartTime: 1700000000.000 (seconds since epoch), 2023-11-14T22:13:20.000+00:00]")
    assert lines[-2] == "#[Clamped: itl below=1 above=0]"
    assert lines[-1].split(",")[:4] == ["Tag=itl", "1700000000.000", "1.000", "1.500"]


@pytest.mark.parametrize("tag", ["", "a,b", "a b", "a\n"])
def test_a_tag_that_the_format_cannot_hold_is_refused(tmp_path: Path, tag: str) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        write_hlog(tmp_path / "x.hlog", [(tag, START, 1.0, Histogram())])


def test_intervals_out_of_order_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="out of order"):
        write_hlog(tmp_path / "x.hlog", [("a", START, 1.0, Histogram()), ("a", START - 1, 1.0, Histogram())])
