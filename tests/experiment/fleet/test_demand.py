"""Demands: from options, from a day's rates, from a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from servebench.errors import UsageError
from servebench.experiment.fleet import demand
from servebench.experiment.fleet.demand_files import read_arrivals, read_daily


def written(folder: Path, text: str) -> Path:
    path = folder / "demand.csv"
    path.write_text(text)
    return path


def test_users_times_their_rate_is_the_peak_and_the_line_says_so() -> None:
    found = demand.of_users(2000, 0.02)
    assert found.peak == pytest.approx(40)
    assert found.mean is None
    assert [line.expression for line in found.lines] == ["2,000 users × 0.02 /s"]


@pytest.mark.parametrize("peak", [0.0, -1.0, float("nan"), float("inf")])
def test_a_peak_must_be_positive(peak: float) -> None:
    with pytest.raises(UsageError, match="positive"):
        demand.of_peak(peak)


class TestDaily:
    def test_each_row_holds_until_the_next_and_the_last_until_the_day_is_over(self, tmp_path: Path) -> None:
        found = read_daily(written(tmp_path, "hour,rate\n0,5\n6,20/s\n9,3000/min\n18,25\n"))
        assert [(s.start, s.hours, s.rate) for s in found.steps] == [(0, 6, 5), (6, 3, 20), (9, 9, 50), (18, 6, 25)]
        assert found.peak == 50
        assert found.mean == pytest.approx((6 * 5 + 3 * 20 + 9 * 50 + 6 * 25) / 24)
        assert found.day_factor == 1

    def test_a_day_that_begins_at_eight_ends_at_eight(self, tmp_path: Path) -> None:
        found = read_daily(written(tmp_path, "Time,Rate\n08:00,4\n20:30,2\n"))
        assert [(s.start, s.hours) for s in found.steps] == [(0, 12.5), (12.5, 11.5)]

    def test_dates_make_a_shape_longer_than_a_day(self, tmp_path: Path) -> None:
        rows = "".join(f"2026-11-{day} {hour:02}:00,{hour}\n" for day in (28, 29) for hour in (0, 12))
        found = read_daily(written(tmp_path, f"time,rate\n{rows}"))
        assert found.hours == 48
        assert found.day_factor == 0.5
        assert any("scaled to 24 hours" in said for said in found.assumptions)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("hour,rate\n", "no rows"),
            ("hour,load\n0,5\n", 'no column "rate"; its columns are hour, load'),
            ("hour,rate\n0,5\n0,6\n", "line 2: the times must rise"),
            ("hour,rate\n0,5\n6,fast\n", "line 3: expected a rate"),
            ("hour,rate\nnoon,5\n", 'line 2: expected a time such as 8, 08:30 or 2026-11-30 08:30, not "noon"'),
            ("hour,rate\n0,0\n", "positive"),
            ("hour,rate\nnan,5\n", 'line 2: expected a time such as 8, 08:30 or 2026-11-30 08:30, not "nan"'),
            ("hour,rate\n\n0,5\n , \n6,fast\n", "line 5: expected a rate"),
            ("hour,rate\n0,5\n6,1,000\n", "line 3: it has more fields than the header line"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_line(self, tmp_path: Path, text: str, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            read_daily(written(tmp_path, text))

    def test_a_spreadsheets_mark_and_blank_lines_are_no_rows(self, tmp_path: Path) -> None:
        found = read_daily(written(tmp_path, "\ufeffhour, rate\r\n0,5,\r\n\r\n,\r\n12,20\r\n"))
        assert [(s.start, s.hours, s.rate) for s in found.steps] == [(0, 12, 5), (12, 12, 20)]

    def test_a_missing_file_and_one_that_is_no_text(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"cannot read .*No such file"):
            read_daily(tmp_path / "none.csv")
        (tmp_path / "demand.csv").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(UsageError, match="is no CSV text"):
            read_daily(tmp_path / "demand.csv")


class TestTrace:
    def test_the_busiest_bin_is_the_peak_and_hours_are_steps(self, tmp_path: Path) -> None:
        """One arrival a second for two hours, and 120 more in one minute of the second hour."""
        at = sorted([*range(7201), *(5400 + i / 4 for i in range(120))])
        found = read_arrivals(written(tmp_path, "timestamp\n" + "".join(f"{t}\n" for t in at)), 60)
        assert found.peak == pytest.approx((60 + 120) / 60)
        assert [(s.start, s.hours, s.rate) for s in found.steps] == [(0, 1, 1), (1, 1, (3600 + 120) / 3600)]
        assert [s.peak for s in found.steps] == [1, 3]

    def test_dates_with_seven_decimals_and_numbers_of_milliseconds(self, tmp_path: Path) -> None:
        """The form of a public trace of a cloud."""
        rows = "".join(f"2023-11-16 18:15:{second:02}.6805900,374,44\n" for second in range(0, 60, 2))
        found = read_arrivals(written(tmp_path, f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}"), 10)
        assert found.peak == pytest.approx(0.5)
        found = read_arrivals(
            written(tmp_path, "n,timestamp_ms\n" + "".join(f"1,{t}\n" for t in range(0, 60_001, 500))), 10
        )
        assert found.peak == pytest.approx(2)

    def test_instants_in_several_zones_are_put_in_one(self, tmp_path: Path) -> None:
        rows = "2026-10-25T02:00:00+02:00\n2026-10-25T00:30:00Z\n2026-10-25T02:00:00+01:00\n"
        found = read_arrivals(written(tmp_path, f"time\n{rows}"), 1800)
        assert found.hours == 1
        assert found.peak == pytest.approx(1 / 1800)

    @pytest.mark.parametrize("instant", ["nan", "inf", "-inf"])
    def test_an_instant_must_be_finite(self, tmp_path: Path, instant: str) -> None:
        with pytest.raises(UsageError, match="line 3: expected a time"):
            read_arrivals(written(tmp_path, f"t\n0\n{instant}\n100\n"), 10)

    def test_nanoseconds_that_are_not_called_so_are_suspected(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="call it t_ms"):
            read_arrivals(written(tmp_path, "t\n1700000000000000000\n1700000360000000000\n"), 60)

    def test_what_fills_no_whole_bin_is_left_out(self, tmp_path: Path) -> None:
        found = read_arrivals(written(tmp_path, "t\n0\n1\n2\n10\n10.1\n10.2\n10.3\n10.4\n"), 10)
        assert found.peak == pytest.approx(0.3)

    def test_a_trace_shorter_than_a_bin_and_a_bin_longer_than_an_hour_are_refused(self, tmp_path: Path) -> None:
        path = written(tmp_path, "t\n0\n5\n")
        with pytest.raises(UsageError, match="less than one bin of 1m"):
            read_arrivals(path, 60)
        with pytest.raises(UsageError, match="at most 1h"):
            read_arrivals(path, 7200)


def test_a_shape_is_scaled_to_the_peak(tmp_path: Path) -> None:
    shape = read_daily(written(tmp_path, "hour,rate\n0,1\n12,4\n"))
    found = demand.scaled_to(demand.of_users(100, 0.1), shape)
    assert found.peak == pytest.approx(10)
    assert [s.rate for s in found.steps] == pytest.approx([2.5, 10])
    assert found.mean == pytest.approx(6.25)
    assert any("scaled by 2.5" in said for said in found.assumptions)
