import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.units import (
    format_duration,
    format_rate,
    parse_amount,
    parse_duration,
    parse_quota,
    parse_rate,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("800ms", 0.8),
        ("60s", 60.0),
        ("2m", 120.0),
        ("2min", 120.0),
        ("1.5h", 5400.0),
        ("60us", 60e-6),
        ("60µs", 60e-6),
        ("2ns", 2e-9),
        (" 10 s ", 10.0),
        ("5", 5.0),
        (5, 5.0),
        (0.25, 0.25),
        ("1e-3s", 1e-3),
        (0, 0.0),
    ],
)
def test_durations_are_seconds(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("bad", ["", "fast", "5 parsecs", "-1s", -1, math.inf, math.nan, None, True, [1], "1s2", "1 M"])
def test_what_is_no_duration_is_refused_with_an_example(bad):
    with pytest.raises(ValueError, match="expected a duration such as 800ms, 60s or 2m, not"):
        parse_duration(bad)


@pytest.mark.parametrize(
    ("text", "per_second"),
    [("4/s", 4.0), ("600/min", 10.0), ("600 / m", 10.0), ("7200/h", 2.0), (4, 4.0), ("4", 4.0), ("0.5/s", 0.5)],
)
def test_rates_are_per_second(text, per_second):
    assert parse_rate(text) == per_second


@pytest.mark.parametrize("bad", ["4/fortnight", "/s", "4s", "-4/s", -4, None, False, {}])
def test_what_is_no_rate_is_refused_with_an_example(bad):
    with pytest.raises(ValueError, match="expected a rate such as 4/s or 600/min, not"):
        parse_rate(bad)


def test_a_quota_keeps_its_period():
    quota = parse_quota("600/min")
    assert (quota.amount, quota.period, quota.rate) == (600.0, 60.0, 10.0)


@pytest.mark.parametrize(
    ("text", "size"), [("2k", 2000), ("1.5k", 1500), ("1M", 1_000_000), (2048, 2048), ("512", 512), (4.0, 4)]
)
def test_sizes_are_whole_and_k_is_1000(text, size):
    assert parse_size(text) == size
    assert isinstance(parse_size(text), int)


@pytest.mark.parametrize("bad", ["2K", "2kk", "1.5", 1.5, "0.0015k", "", None, True, -1, "two"])
def test_what_is_no_size_is_refused(bad):
    with pytest.raises(ValueError, match="expected a"):
        parse_size(bad)


def test_amounts_need_not_be_whole():
    assert parse_amount("1.5") == 1.5
    assert parse_amount("2.5k") == 2500.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.8, "800ms"),
        (60, "1m"),
        (90, "90s"),
        (60e-6, "60us"),
        (2e-9, "2ns"),
        (5400, "90m"),
        (1.5, "1.5s"),
    ],
)
def test_durations_are_written_in_the_largest_unit_that_fits(seconds, text):
    assert format_duration(seconds) == text


@given(st.integers(min_value=1, max_value=10**12))
def test_a_written_duration_reads_back_to_the_nanosecond(nanoseconds):
    assert round(parse_duration(format_duration(nanoseconds / 1e9)) * 1e9) == nanoseconds


@given(st.integers(min_value=1, max_value=10**6), st.sampled_from([1, 60, 1000]))
def test_a_written_rate_reads_back(amount, period):
    assert math.isclose(parse_rate(format_rate(amount / period)), amount / period, rel_tol=1e-11)


def test_slow_rates_are_written_per_minute_when_shorter():
    assert format_rate(0.1 / 3) == "2/min"
    assert format_rate(0.5) == "0.5/s"
    assert format_rate(4) == "4/s"
