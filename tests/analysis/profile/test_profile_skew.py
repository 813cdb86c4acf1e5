"""How far apart devices come to the same collective, by hand."""

import pytest

from device_timelines import Drawn
from servebench.analysis.profile.skew import rank_skew

END = 10_000_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def collectives(late: list[int], name: str = ALL_REDUCE, devices: int = 2, every: int = 100_000) -> Drawn:
    """One collective after the other; device 1 comes late by so much, and all end together."""
    drawn = Drawn()
    for number, lateness in enumerate(late):
        at = number * every
        for device in range(devices):
            drawn.collective(name, at + (lateness if device == 1 else 0), at + 50_000, device=device)
    return drawn


def test_the_spread_of_starts_and_who_is_last() -> None:
    assert rank_skew(collectives([1_000, 2_000, 3_000, -4_000]).timeline(), -END, END) == {
        "collectives": 4,
        "p50_us": 2,
        "p99_us": 4,
        "max_us": 4,
        "last": {"device": 1, "share": 0.75},
    }


def test_one_device_has_no_skew() -> None:
    assert rank_skew(collectives([0, 0], devices=1).timeline(), 0, END) is None
    assert rank_skew(Drawn().kernel("k", 0, 10).kernel("k", 5, 10, device=1).timeline(), 0, END) is None


def test_those_that_come_together_have_no_last() -> None:
    found = rank_skew(collectives([0, 0]).timeline(), 0, END)
    assert found is not None
    assert (found["max_us"], found["last"]) == (0, None)


def test_names_are_matched_by_themselves() -> None:
    drawn = collectives([1_000, 1_000])
    drawn.rows += collectives([5_000], name="other").rows
    drawn.names.append("other")
    for row in drawn.rows[-2:]:
        row["name"] = 1
    found = rank_skew(drawn.timeline(), 0, END)
    assert found is not None
    assert (found["collectives"], found["max_us"], found["p50_us"]) == (3, 5, 1)


def test_only_collectives_that_begin_in_the_window_everywhere_count() -> None:
    found = rank_skew(collectives([1_000, 2_000, 3_000]).timeline(), 100_500, 300_000)
    assert found is not None
    assert (found["collectives"], found["max_us"]) == (1, 3)
    assert rank_skew(collectives([1_000]).timeline(), 500, END) is None


@pytest.mark.parametrize("device", [0, 1])
def test_a_device_that_was_captured_later_is_matched_from_there(device: int) -> None:
    drawn = collectives([1_000] * 6)
    del drawn.rows[device]  # the first one that it had part in
    found = rank_skew(drawn.timeline(), -END, END)
    assert found is not None
    assert (found["collectives"], found["p50_us"], found["max_us"]) == (5, 1, 1)


def test_a_device_whose_capture_ended_earlier_is_matched_to_its_end() -> None:
    drawn = collectives([1_000] * 6)
    del drawn.rows[-1]
    found = rank_skew(drawn.timeline(), -END, END)
    assert found is not None
    assert (found["collectives"], found["max_us"]) == (5, 1)


def test_eight_devices() -> None:
    drawn = Drawn()
    for number in range(10):
        for device in range(8):
            at = number * 100_000 + 100 * device if device != 5 else number * 100_000 + 2_000
            drawn.collective(ALL_REDUCE, at, number * 100_000 + 9_000, device=device)
    found = rank_skew(drawn.timeline(), 0, END)
    assert found is not None
    assert found["last"] == {"device": 5, "share": 1}
    assert (found["collectives"], found["p50_us"]) == (10, 2)


def test_replicas_of_two_devices_each_are_two_groups() -> None:
    drawn = Drawn()
    for number in range(20):
        for device, at in enumerate((0, 1_000, 30_000, 33_000)):
            start = 100_000 * number + at
            drawn.collective(ALL_REDUCE, start, 100_000 * number + (10_000 if device < 2 else 40_000), device=device)
    found = rank_skew(drawn.timeline(), 0, END)
    assert found is not None
    assert (found["collectives"], found["p50_us"], found["p99_us"], found["max_us"]) == (40, 1, 3, 3)
    assert found["last"]["share"] == 0.5


def test_stages_of_a_pipeline_are_no_group() -> None:
    drawn = Drawn()
    for number in range(5):
        for device in (0, 1):
            start = 100_000 * number + 50_000 * device
            drawn.collective("ncclDevKernel_SendRecv", start, start + 5_000, device=device)
    assert rank_skew(drawn.timeline(), 0, END) is None
