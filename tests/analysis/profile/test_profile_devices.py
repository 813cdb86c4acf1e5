"""What devices did in a window, by hand: instants in ns, from which every figure can be counted."""

from typing import Any

import numpy as np
import pytest

from device_timelines import Drawn
from servebench.analysis.profile.devices import busy_spans, describe_devices, exposed, survey
from servebench.profile.timeline import Kind, Timeline


def only(drawn: Drawn, start: int = 0, end: int = 1_000_000) -> dict[str, Any]:
    (device,) = describe_devices(drawn.timeline(), start, end, None)
    return device


def kernel(device: dict[str, Any], name: str) -> dict[str, Any]:
    (row,) = (row for row in device["kernels"] if row["name"] == name)
    return row


def test_streams_that_overlap_fully_do_not_count_twice() -> None:
    device = only(Drawn().kernel("a", 0, 500_000).kernel("b", 0, 500_000, stream=8))
    assert device["busy"]["ms"] == device["busy"]["compute_ms"] == 0.5
    assert device["busy"]["summed_ms"] == 1.0
    assert device["busy"]["share"] == device["idle"]["share"] == 0.5
    assert [row["exposed_ms"] for row in device["kernels"]] == [0, 0]


def test_a_hidden_kernel_has_no_exposed_time() -> None:
    device = only(Drawn().kernel("long", 100_000, 900_000).kernel("hidden", 300_000, 500_000, stream=8))
    assert kernel(device, "hidden")["exposed_ms"] == 0
    assert kernel(device, "hidden")["exposed_share"] == 0
    assert kernel(device, "hidden")["total_ms"] == 0.2
    assert kernel(device, "long")["exposed_ms"] == 0.6
    assert kernel(device, "long")["exposed_share"] == 0.75
    assert [row["name"] for row in device["kernels"]] == ["long", "hidden"]


def test_each_kind_has_its_own_union() -> None:
    drawn = Drawn().kernel("k", 0, 100_000).kernel("k", 50_000, 150_000, stream=8)
    drawn.collective("ncclDevKernel_AllReduce", 140_000, 200_000, stream=9)
    drawn.row(Kind.COPY_HTOD, "copy", 300_000, 310_000, bytes=1).row(Kind.COPY_DTOH, "copy", 305_000, 315_000, bytes=1)
    drawn.row(Kind.FILL, "fill", 400_000, 401_000, bytes=1)
    assert only(drawn)["busy"] == {
        "ms": 0.216,
        "share": 0.216,
        "compute_ms": 0.15,
        "communication_ms": 0.06,
        "copy_ms": 0.015,
        "fill_ms": 0.001,
        "summed_ms": 0.281,
    }


def test_rows_at_the_edges_are_clipped_for_time_and_counted_once() -> None:
    drawn = Drawn().kernel("k", 0, 100_000).kernel("k", 200_000, 230_000).kernel("k", 290_000, 400_000)
    device = only(drawn, 50_000, 300_000)
    assert device["busy"]["ms"] == 0.05 + 0.03 + 0.01
    row = kernel(device, "k")
    assert (row["n"], row["total_ms"], row["exposed_ms"]) == (3, 0.09, 0.09)
    assert (row["mean_us"], row["p50_us"], row["p99_us"]) == (80, 100, 110)  # of whole kernels
    assert device["tiny"]["n"] == 0  # the last one is not tiny because the window cuts it


def test_rows_beside_the_window_are_not_counted() -> None:
    drawn = Drawn().kernel("before", 0, 100).kernel("in", 100, 200).kernel("after", 200, 300)
    device = only(drawn, 100, 200)
    assert [row["name"] for row in device["kernels"]] == ["in"]
    assert (device["kernels_n"], device["busy"]["share"], device["idle"]["causes"][0]["n"]) == (1, 1, 0)


def test_a_row_without_length_is_counted_and_takes_no_time() -> None:
    device = only(Drawn().kernel("k", 500, 500).kernel("k", 700, 800), 0, 1000)
    assert (kernel(device, "k")["n"], kernel(device, "k")["total_ms"]) == (2, 0.0001)
    assert device["idle"]["ms"] == 0.0009


def test_devices_are_separate_also_under_equal_names() -> None:
    drawn = Drawn().kernel("gemm", 0, 400).kernel("gemm", 100, 200, device=1).kernel("other", 150, 160, device=1)
    first, second = describe_devices(drawn.timeline(devices={0: "H200", 1: "L4"}), 0, 1000, None)
    assert [(each["device"], each["name"]) for each in (first, second)] == [(0, "H200"), (1, "L4")]
    assert [each["busy"]["ms"] for each in (first, second)] == [0.0004, 0.0001]
    assert kernel(first, "gemm")["exposed_ms"] == 0.0004
    assert kernel(second, "gemm")["exposed_ms"] == 0.00009


def test_a_device_that_did_nothing_in_the_window_was_idle_all_the_time() -> None:
    drawn = Drawn().kernel("k", 0, 10).kernel("k", 0, 900, device=1)
    idle, busy = describe_devices(drawn.timeline(), 100, 600, None)
    assert (idle["busy"]["ms"], idle["idle"]["share"], idle["kernels"], idle["launches"]) == (0, 1, [], None)
    assert idle["tiny"] == {"below_us": 10, "n": 0, "share": None, "ms": 0}
    assert (busy["busy"]["share"], busy["idle"]["longest"]) == (1, [])


def test_a_host_without_a_device_has_none() -> None:
    drawn = Drawn().call("read", 0, 10, Kind.SYSTEM)
    assert survey(drawn.timeline(devices={0: "unused"}), 0, 10, None) == ([], [])


def test_a_window_without_length_has_no_shares() -> None:
    device = only(Drawn().kernel("k", 0, 10), 5, 5)
    assert (device["busy"]["share"], device["idle"]["share"], device["busy"]["ms"]) == (None, None, 0)


class TestGraphs:
    def test_kernels_of_replays_are_counted_by_their_launches(self) -> None:
        drawn = Drawn().call("cudaGraphLaunch", 0, 10, correlation=1).call("cudaGraphLaunch", 10, 20, correlation=2)
        for at, launch in ((100, 1), (200, 1), (300, 2), (400, 2)):
            drawn.kernel("node", at, at + 50, correlation=launch, graph=4)
        drawn.kernel("eager", 500, 600, (450, 460), correlation=3)
        assert only(drawn)["graphs"] == {"replays": 2, "kernels_in_graphs": 4}

    def test_correlations_repeat_across_processes(self) -> None:
        drawn = Drawn().kernel("node", 0, 10, correlation=1, graph=4)
        drawn.kernel("node", 20, 30, correlation=1, graph=4, process=9)
        assert only(drawn)["graphs"]["replays"] == 2

    def test_a_whole_replay_is_busy_time_and_a_row_of_its_own(self) -> None:
        device = only(Drawn().row(Kind.GRAPH, "graph 3", 100, 300).kernel("k", 200, 400, stream=8), 0, 1000)
        assert (device["busy"]["ms"], device["busy"]["compute_ms"]) == (0.0003, 0.0003)
        assert device["graphs"] == {"replays": 1, "kernels_in_graphs": 0}
        assert kernel(device, "graph 3")["exposed_ms"] == 0.0001

    def test_replays_without_correlations_are_not_known(self) -> None:
        assert only(Drawn().kernel("node", 0, 10, graph=4))["graphs"] == {"replays": None, "kernels_in_graphs": 1}


def test_busy_spans_of_a_device() -> None:
    drawn = Drawn().kernel("a", 0, 10).kernel("b", 5, 20).kernel("c", 30, 40).kernel("d", 0, 99, device=1)
    starts, ends = busy_spans(drawn.timeline(), 0, 8, 35)
    assert (starts.tolist(), ends.tolist()) == ([8, 30], [20, 35])


def test_exposed_pieces_bear_the_names_of_the_timeline() -> None:
    drawn = Drawn().call("only the host has this name", 0, 1).kernel("a", 0, 10).kernel("b", 5, 20)
    timeline = drawn.timeline()
    pieces, names = exposed(timeline, 0, 2, 100)
    assert [(s, e, timeline.names[at]) for s, e, at in zip(*pieces, names, strict=True)] == [(2, 5, "a"), (10, 20, "b")]


def test_only_the_names_with_most_exposed_time_are_listed() -> None:
    drawn = Drawn()
    for number in range(30):
        drawn.kernel(f"k{number:02}", number * 1000, number * 1000 + 30 - number)
    device = only(drawn)
    assert [row["name"] for row in device["kernels"]] == [f"k{number:02}" for number in range(20)]
    assert device["kernels_n"] == 30


def test_tiny_kernels_are_those_below_ten_microseconds() -> None:
    drawn = Drawn().kernel("a", 0, 9_999).kernel("b", 20_000, 30_000).kernel("c", 40_000, 90_000)
    drawn.row(Kind.COPY_DTOH, "copy", 100_000, 100_001)
    assert only(drawn)["tiny"] == {"below_us": 10, "n": 1, "share": pytest.approx(1 / 3, abs=1e-6), "ms": 0.009999}


def test_quantiles_are_nearest_ranks() -> None:
    drawn = Drawn()
    for number in range(1, 201):
        drawn.kernel("k", number * 10_000, number * 10_000 + number)
    row = kernel(only(drawn, 0, 10_000_000), "k")
    assert (row["p50_us"], row["p99_us"], row["mean_us"]) == (0.1, 0.198, 0.1005)


def test_a_capture_of_another_kind_of_integers_is_no_matter() -> None:
    columns: dict[str, Any] = {"start": np.array([0], np.int32), "end": np.array([5], np.int32)}
    timeline = Timeline.of_columns(
        "xprof", ("k",), columns | {"device": np.array([3]), "name": np.array([0])} | {"kind": np.array([0], np.uint8)}
    )
    (device,) = describe_devices(timeline, 0, 10, None)
    assert (device["device"], device["busy"]["ms"], device["graphs"]["replays"]) == (3, 0.000005, 0)
