import pytest

from servebench.report.curve_plot import MARKERS, Scale, curve_plot, height_scale, short, width_scale


def test_points_lie_where_their_values_say():
    lines = curve_plot([[(0, 0), (5, 5), (10, 10)]], width=11, height=11)
    field = [line.partition("┤")[2].ljust(11) for line in lines[:-1]]
    assert [(row.index("●"), 10 - number) for number, row in enumerate(field) if "●" in row] == [
        (10, 10),
        (5, 5),
        (0, 0),
    ]
    assert [line.partition(" ┤")[0].strip() for line in (lines[0], lines[5], lines[10])] == ["10", "5", "0"]
    assert lines[-1].split() == ["0", "5", "10"]


def test_joints_lead_from_point_to_point_in_the_order_given():
    straight = curve_plot([[(0, 0), (10, 10)]], width=11, height=11)
    assert sum(line.count("·") for line in straight) == 9
    back = curve_plot([[(10, 10), (0, 0)]], width=11, height=11)
    assert back == straight
    upright = curve_plot([[(1, 0), (1, 10), (2, 10)]], width=11, height=11)
    assert sum(line.partition("┤")[2].startswith("·") for line in upright) == 9


def test_the_first_series_lies_on_top_and_each_has_its_mark():
    lines = curve_plot([[(1, 1)], [(1, 1), (2, 1)]], width=10, height=3)
    text = "\n".join(lines)
    assert text.count(MARKERS[0]) == 1
    assert text.count(MARKERS[1]) == 1


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1, 14], Scale(0.0, 15.0)),
        ([3, 90], Scale(2.0, 100.0, True)),
        ([0, 90], Scale(0.0, 100.0)),
    ],
)
def test_values_far_apart_take_a_logarithmic_scale_unless_one_is_zero(values, scale):
    found = height_scale(values)
    assert (found.low, found.high, found.logarithmic) == pytest.approx((scale.low, scale.high, scale.logarithmic))


def test_a_scale_goes_there_and_back():
    for scale in (Scale(2, 50), Scale(2, 50, True), width_scale([1, 64])):
        for value in (scale.low, 3.0, scale.high):
            assert scale.value(scale.place(value)) == pytest.approx(value)


def test_a_single_point_and_equal_values_are_drawn():
    assert "●" in "\n".join(curve_plot([[(4, 0)]], width=10, height=3))
    assert "\n".join(curve_plot([[(1, 7), (2, 7)]], width=10, height=3)).count("●") == 2


def test_the_last_mark_of_the_level_axis_always_shows():
    line = curve_plot([[(x, 1) for x in (1, 2, 3, 3.9, 4)]], width=20, height=2)[-1]
    assert line.split()[-1] == "4"
    assert len(line) <= 25


@pytest.mark.parametrize(
    ("value", "text"), [(0.25, "0.25"), (12.5, "12.5"), (8190, "8.19k"), (2e6, "2M"), (0, "0"), (999, "999")]
)
def test_short_numbers(value, text):
    assert short(value) == text
