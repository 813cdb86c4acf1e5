from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servebench.profile.readers.xplane import read_xplane
from servebench.profile.timeline import NONE, Kind, Timeline
from servebench.profile.tool import ProfileError
from xplane_files import START, Event, write_space

CPU = {
    "/host:CPU": {
        "python": [
            Event("serve", 0, 900, {"step_num": 4}),
            Event("PjitFunction(step)", 10, 100),
            Event("serve", 1000, 800, {"step_num": 5}),
        ],
        "tf_XLAEigen/1": [
            Event("ThreadpoolListener::StartRegion", 15, 0),
            Event("fusion.1", 20, 200, {"hlo_op": "fusion.1", "device_ordinal": 0}),
            Event("end: fusion.1", 220, 1),
            Event("while.3", 300, 500, {"hlo_op": "while.3", "device_ordinal": 0}),
            Event("dot.1", 310, 100, {"hlo_op": "dot.1", "device_ordinal": 0}),
            Event("dot.1", 420, 380, {"hlo_op": "dot.1", "device_ordinal": 0}),
        ],
    }
}
GPU = {
    "/device:GPU:1": {
        "Stream #14(Compute)": [Event("gemm", 100, 50, {"correlation_id": 11, "hlo_op": "dot.1"})],
        "Stream #15(MemcpyH2D)": [
            Event(
                "MemcpyH2D",
                90,
                20,
                {"correlation_id": 12, "memcpy_details": "kind_src:pinned kind_dst:device size:4096 dest:1 async:1"},
            ),
            Event("Memset", 120, 5, {"correlation_id": 13}),
        ],
        "Stream #16(Compute)": [Event("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 150, 30, {"correlation_id": 14})],
        "XLA Ops": [Event("dot.1", 100, 50)],
        "XLA Modules": [Event("jit_step(3)", 90, 95)],
    },
    "/host:CUPTI": {
        "driver api 71": [
            Event("cuLaunchKernel", 80, 4, {"correlation_id": 11}),
            Event("cuStreamSynchronize", 85, 100, {"correlation_id": 15}),
        ]
    },
}
TPU = {
    "/device:TPU:3": {
        "Steps": [Event("17", 0, 90)],
        "XLA Modules": [Event("jit_step(3)", 0, 90)],
        "XLA Ops": [
            Event("%fusion.7 = bf16[8,128]{1,0} fusion(...)", 0, 50, display="fusion.7"),
            Event("%all-reduce.1 = bf16[8] all-reduce(...)", 50, 40, display="all-reduce.1"),
        ],
        "Async XLA Ops": [Event("copy-start.2", 10, 30)],
        "Framework Ops": [Event("jit(step)/dot_general", 0, 50)],
    }
}


def rows(timeline: Timeline, *kinds: Kind) -> list[tuple[str, int, int]]:
    """Name, start and length in us after the instant of the lines, of the rows of some kinds."""
    found = timeline.take(timeline.of_kind(*kinds))
    return [
        (found.names[name], round((start - START - 1000) / 1000), round((end - start) / 1000))
        for name, start, end in zip(found.name, found.start, found.end, strict=True)
    ]


def test_steps_are_ranges_and_the_rest_of_their_thread_operators(tmp_path: Path) -> None:
    timeline = read_xplane(write_space(tmp_path / "a.xplane.pb", CPU))
    assert rows(timeline, Kind.RANGE) == [("serve", 0, 900), ("serve", 1000, 800)]
    assert rows(timeline, Kind.OPERATOR) == [("PjitFunction(step)", 10, 100)]
    assert timeline.facts["step_names"] == ["serve"]
    assert timeline.facts["threads"] == ["python", "tf_XLAEigen/1"]
    assert set(timeline.take(timeline.of_kind(Kind.RANGE)).thread.tolist()) == {0}
    assert set(timeline.process.tolist()) == {7}


def test_operations_of_the_cpu_backend_are_of_the_device_that_they_name(tmp_path: Path) -> None:
    timeline = read_xplane(write_space(tmp_path / "a.xplane.pb", CPU))
    assert rows(timeline, Kind.COMPUTE) == [("fusion.1", 20, 200), ("dot.1", 310, 100), ("dot.1", 420, 380)]
    assert timeline.devices == {0: "CPU 0 (threads of the host)"}
    assert set(timeline.take(timeline.on_device).device.tolist()) == {0}
    assert timeline.notes == ("2 markers and aggregates left out", "1 operations that only contain others left out")


def test_streams_of_a_gpu_with_their_copies_collectives_and_launches(tmp_path: Path) -> None:
    timeline = read_xplane(write_space(tmp_path / "a.xplane.pb", GPU))
    assert rows(timeline, Kind.COMPUTE) == [("gemm", 100, 50)]
    assert rows(timeline, Kind.COPY_HTOD) == [("MemcpyH2D", 90, 20)]
    assert rows(timeline, Kind.FILL) == [("Memset", 120, 5)]
    assert rows(timeline, Kind.COMMUNICATION) == [("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 150, 30)]
    assert rows(timeline, Kind.API) == [("cuLaunchKernel", 80, 4)]
    assert rows(timeline, Kind.SYNC) == [("cuStreamSynchronize", 85, 100)]
    assert rows(timeline, Kind.RANGE) == [("jit_step(3)", 90, 95)]
    copy = timeline.take(timeline.of_kind(Kind.COPY_HTOD))
    assert (copy.bytes[0], copy.device[0], copy.stream[0], copy.correlation[0]) == (4096, 1, 15, 12)
    assert timeline.take(timeline.of_kind(Kind.COMPUTE)).bytes[0] == NONE
    assert timeline.devices == {1: "GPU 1"}


def test_operations_of_a_tpu_by_their_short_names(tmp_path: Path) -> None:
    timeline = read_xplane(write_space(tmp_path / "a.xplane.pb", TPU))
    assert rows(timeline, Kind.COMPUTE) == [("fusion.7", 0, 50), ("copy-start.2", 10, 30)]
    assert rows(timeline, Kind.COMMUNICATION) == [("all-reduce.1", 50, 40)]
    assert rows(timeline, Kind.RANGE) == [("jit_step(3)", 0, 90)]
    assert timeline.devices == {3: "TPU 3"}
    assert timeline.take(timeline.on_device).stream.tolist() == [0, 1, 0]


def test_instants_since_1970_and_since_the_start_of_the_capture_agree(tmp_path: Path) -> None:
    relative = read_xplane(write_space(tmp_path / "a.xplane.pb", CPU))
    absolute = read_xplane(write_space(tmp_path / "b.xplane.pb", CPU, absolute=True))
    assert (relative.start == absolute.start).all()
    assert relative.start[0] == START + 1000
    assert relative.span == (START, START + 1_000_000_000)
    assert relative.alignment is not None
    assert relative.alignment.residual_ns is None and relative.alignment.reason


def test_aggregates_are_left_out_with_their_statistics(tmp_path: Path) -> None:
    events = [
        Event("many", 0, 500, {"step_num": 9}, occurrences=3),
        Event("PjitFunction(step)", 10, 20),
        Event("serve", 50, 100, {"step_num": 1}),
    ]
    timeline = read_xplane(write_space(tmp_path / "a.xplane.pb", {"/host:CPU": {"python": events}}))
    assert rows(timeline, Kind.OPERATOR) == [("PjitFunction(step)", 10, 20)]
    assert rows(timeline, Kind.RANGE) == [("serve", 50, 100)]
    assert timeline.notes == ("1 markers and aggregates left out",)


def test_without_the_start_of_the_capture_the_clock_is_not_known(tmp_path: Path) -> None:
    timeline = read_xplane(write_space(tmp_path / "a.xplane.pb", CPU, environment=False))
    assert timeline.alignment is None
    assert timeline.start[0] == 1000
    known = read_xplane(write_space(tmp_path / "b.xplane.pb", CPU, environment=False, absolute=True))
    assert known.alignment is not None


def test_nothing_recorded_is_an_empty_timeline(tmp_path: Path) -> None:
    timeline = read_xplane(write_space(tmp_path / "a.xplane.pb", {"/host:CPU": {}}, warnings=["ring buffer full"]))
    assert len(timeline) == 0
    assert timeline.span == (START, START + 1_000_000_000)
    assert timeline.notes == ("ring buffer full",)
    assert timeline.facts["hosts"] == ["host-a"]


@pytest.mark.parametrize("cut", [1, 17, 200])
def test_a_cut_file_is_an_error(tmp_path: Path, cut: int) -> None:
    path = write_space(tmp_path / "a.xplane.pb", CPU)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ProfileError, match=r"a\.xplane\.pb cannot be read as a profile of XLA: .*cut short"):
        read_xplane(path)


@pytest.mark.parametrize("content", [b"\x08\x01", b"PERFILE2 and more", b"\x0a\x03\x12\x05abc", b"{}"])
def test_a_foreign_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match="cannot be read as a profile of XLA"):
        read_xplane(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="No such file"):
        read_xplane(tmp_path / "none")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_damage_is_an_error_or_passes_unseen(tmp_path: Path, damage: list[tuple[int, int]]) -> None:
    path = write_space(tmp_path / "a.xplane.pb", {**CPU, **GPU})
    data = bytearray(path.read_bytes())
    for at, byte in damage:
        data[at % len(data)] = byte
    path.write_bytes(data)
    with suppress(ProfileError):
        assert (read_xplane(path).end >= read_xplane(path).start).all()
