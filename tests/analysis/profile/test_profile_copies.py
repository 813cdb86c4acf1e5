"""Copies and collectives, and what of them hides behind other work; by hand."""

from typing import Any

import pytest

from device_timelines import Drawn
from servebench.analysis.profile.devices import describe_devices
from servebench.profile.timeline import Kind

MB = 1_000_000


def described(drawn: Drawn, start: int = 0, end: int = 10 * MB) -> dict[str, Any]:
    (device,) = describe_devices(drawn.timeline(), start, end, None)
    return device


def test_a_copy_beside_a_kernel_is_hidden() -> None:
    drawn = Drawn().kernel("k", 0, 2 * MB).row(Kind.COPY_HTOD, "copy", MB, 3 * MB, bytes=50 * MB, stream=9)
    assert described(drawn)["copies"] == [
        {
            "direction": "host to device",
            "n": 1,
            "bytes": 50 * MB,
            "ms": 2,
            "exposed_ms": 1,
            "overlapped_share": 0.5,
            "gb_per_s": 25,
        }
    ]


def test_copies_that_overlap_count_once_for_time_and_each_for_speed() -> None:
    drawn = Drawn()
    for stream in (7, 8):
        drawn.row(Kind.COPY_DTOH, "copy", 0, MB, bytes=10 * MB, stream=stream)
    (row,) = described(drawn)["copies"]
    assert (row["n"], row["bytes"], row["ms"], row["exposed_ms"], row["gb_per_s"]) == (2, 20 * MB, 1, 1, 10)


def test_a_collective_hides_a_copy_and_another_copy_does_not() -> None:
    drawn = Drawn().collective("nccl", 0, MB).row(Kind.COPY_PEER, "p2p", 0, 2 * MB, bytes=1, stream=8)
    drawn.row(Kind.COPY_DTOD, "d2d", MB, 2 * MB, bytes=1, stream=9)
    by_direction = {row["direction"]: row for row in described(drawn)["copies"]}
    assert by_direction["device to device"]["overlapped_share"] == 0.5
    assert by_direction["within the device"]["overlapped_share"] == 0


def test_a_copy_that_the_window_cuts_keeps_its_bytes_and_speed() -> None:
    drawn = Drawn().row(Kind.COPY_HTOD, "copy", 0, 4 * MB, bytes=4 * MB)
    (row,) = described(drawn, MB, 2 * MB)["copies"]
    assert (row["ms"], row["bytes"], row["gb_per_s"]) == (1, 4 * MB, 1)


def test_a_tool_that_tells_no_sizes() -> None:
    (row,) = described(Drawn().row(Kind.COPY_HTOD, "copy", 0, 10))["copies"]
    assert (row["bytes"], row["gb_per_s"]) == (None, None)


def test_every_direction_has_its_own_row() -> None:
    drawn = Drawn()
    for number, kind in enumerate(kind for kind in Kind if kind.name.startswith("COPY")):
        drawn.row(kind, "copy", 10 * number, 10 * number + 5, bytes=1)
    assert len({row["direction"] for row in described(drawn)["copies"]}) == 6


def test_without_a_collective_there_is_no_communication() -> None:
    assert described(Drawn().kernel("k", 0, 10))["communication"] is None


def test_a_collective_is_exposed_where_nothing_else_runs() -> None:
    drawn = Drawn().kernel("k", 0, 3 * MB).collective("allreduce", 2 * MB, 6 * MB, stream=9)
    drawn.collective("allgather", 5 * MB, 7 * MB, stream=10)
    found = described(drawn)["communication"]
    assert (found["ms"], found["exposed_ms"], found["hidden_share"]) == (5, 4, 0.2)
    rows = {row["name"]: row for row in found["kernels"]}
    # by name, the two hide each other
    assert (rows["allreduce"]["exposed_ms"], rows["allreduce"]["total_ms"]) == (2, 4)
    assert (rows["allgather"]["exposed_ms"], rows["allgather"]["exposed_share"]) == (1, 0.5)
    assert rows["allreduce"] in described(drawn)["kernels"]


@pytest.mark.parametrize("kind", [Kind.COMPUTE, Kind.GRAPH, Kind.FILL, Kind.COPY_HTOD])
def test_any_other_work_hides_a_collective(kind: Kind) -> None:
    drawn = Drawn().row(kind, "other", 0, 10 * MB).collective("allreduce", MB, 2 * MB, stream=9)
    found = described(drawn)["communication"]
    assert (found["exposed_ms"], found["hidden_share"]) == (0, 1)
