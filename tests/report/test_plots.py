import numpy as np
import pytest

from servebench.report.plots import column_plot, histogram, rate_plot, round_step, scale_line


def test_columns_grow_by_eighths():
    assert column_plot([0, 1, 2, 3, 4, 5, 6, 7, 8], height=1) == ["8 ┤ ▁▂▃▄▅▆▇█"]
    assert column_plot([0, 8, 16], height=2) == ["16 ┤  █", " 0 ┤ ██"]


def test_what_is_not_zero_shows():
    assert column_plot([1, 1_000_000], height=1)[0].endswith("▁█")
    assert column_plot([0, 0], height=2) == ["0 ┤  ", "0 ┤  "]


@pytest.mark.parametrize(
    ("top", "label"), [(0.25, "0.25"), (23, "23"), (250, "250"), (8190, "8.2k"), (123_456, "123k")]
)
def test_the_scale_is_short(top, label):
    assert column_plot([top])[0].startswith(f"{label} ┤")


def test_labels_stand_under_their_place_and_do_not_overlap():
    line = scale_line(4, 20, [(0, "0"), (0.5, "half"), (0.55, "too near"), (1.0, "end")])
    assert line == "    0         half   end"
    assert len(line) == 24


def test_rates_are_per_second_whatever_the_bin():
    lines, bin_s = rate_plot(np.arange(0, 120, 0.25), 120, width=60)
    assert bin_s == 2.0
    assert lines[0] == "4 ┤" + "█" * 60


@pytest.mark.parametrize(
    ("least", "step"), [(1.0, 1.0), (1.01, 1.5), (2.3, 2.5), (0.041, 0.05), (8, 10), (61, 75), (0, 1)]
)
def test_bins_are_round(least, step):
    assert round_step(least) == pytest.approx(step)


def test_a_histogram_counts_whole_numbers_evenly():
    lines, marks, logarithmic = histogram(np.arange(100, 160), width=60)
    assert not logarithmic
    assert lines[0] == "1 ┤" + "█" * 60
    assert marks[0] == (0.0, "100")
    assert marks[-1] == (1.0, "159")


def test_a_wide_histogram_is_logarithmic_and_level_for_a_law_that_is():
    ranks = (np.arange(200_000) + 0.5) / 200_000
    lines, marks, logarithmic = histogram(np.floor(10 * 1000**ranks).astype(int), width=40)
    assert logarithmic
    assert [text for _, text in marks][::4] == ["10", "9999"]
    assert set("".join(line.split("┤")[1] for line in lines[1:])) <= {"█", "▇", "▆"}


def test_a_single_value_is_one_column():
    lines, _, _ = histogram(np.array([5, 5, 5]))
    assert lines == ["3 ┤█", "  ┤█", "  ┤█", "0 ┤█"]
