"""read_kineto: what each kind of event becomes, where instants count from, and what a broken file is told to be."""

from __future__ import annotations

import gzip
import random
import time
from pathlib import Path
from typing import Any

import pytest

import kineto_files as kf
from servebench.profile.readers.kineto import read_kineto, read_ranks, stream
from servebench.profile.timeline import NONE, Kind, Timeline

BASE_NS = 1_790_857_026_000_000_000
NOW_NS = 1_796_041_827_504_000_000


def read(tmp_path: Path, *events: dict[str, Any], name: str = "t.json", **options: Any) -> Timeline:
    return read_kineto(kf.write(tmp_path / name, kf.document(events, **options)))


def names(timeline: Timeline) -> list[str]:
    return [timeline.names[number] for number in timeline.name.tolist()]


# -- what events become


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("cpu_op", "aten::mm", Kind.OPERATOR),
        ("Operator", "aten::mm", Kind.OPERATOR),
        ("user_annotation", "execute_context_0(0)_generation_4(4)", Kind.RANGE),
        ("cuda_runtime", "cudaLaunchKernel", Kind.API),
        ("cuda_driver", "cuLaunchKernelEx", Kind.API),
        ("cuda_runtime", "cudaStreamWaitEvent", Kind.API),
        ("cuda_runtime", "cudaStreamSynchronize", Kind.SYNC),
        ("cuda_driver", "cuCtxSynchronize", Kind.SYNC),
        ("Runtime", "cudaDeviceSynchronize", Kind.SYNC),
        ("hip_runtime", "hipDeviceSynchronize", Kind.SYNC),
        ("kernel", "ampere_bf16_gemm", Kind.COMPUTE),
        ("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Kind.COMMUNICATION),
        ("kernel", "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>", Kind.COMMUNICATION),
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", Kind.COPY_HTOD),
        ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", Kind.COPY_DTOH),
        ("Memcpy", "Memcpy DtoD (Device -> Device)", Kind.COPY_DTOD),
        ("gpu_memcpy", "Memcpy PtoP (Device -> Device)", Kind.COPY_PEER),
        ("gpu_memcpy", "Memcpy HtoH (Pinned -> Pageable)", Kind.COPY_HTOH),
        ("gpu_memcpy", "Memcpy (unknown)", Kind.COPY_OTHER),
        ("gpu_memset", "Memset (Device)", Kind.FILL),
        ("overhead", "Activity Buffer Request", Kind.OVERHEAD),
    ],
)
def test_kind_of_an_event(tmp_path: Path, category: str, name: str, kind: Kind) -> None:
    timeline = read(tmp_path, kf.span(category, name, 10.0, 5.0))
    assert [(Kind(kind), name)] == [(Kind(row), each) for row, each in zip(timeline.kind, names(timeline), strict=True)]


def test_every_column(tmp_path: Path) -> None:
    timeline = read(
        tmp_path,
        kf.span("cuda_runtime", "cudaMemcpyAsync", 100.5, 3.25, tid=12, correlation=9, device=3),
        kf.memcpy("HtoD", 110.001, 20.002, 4096, correlation=9),
        base_ns=BASE_NS,
    )
    assert timeline.start.tolist() == [BASE_NS + 100_500, BASE_NS + 110_001]
    assert timeline.end.tolist() == [BASE_NS + 103_750, BASE_NS + 130_003]
    assert timeline.process.tolist() == [kf.HOST_PID, kf.HOST_PID]  # the device's row has its launching process
    assert timeline.thread.tolist() == [12, NONE]
    assert timeline.device.tolist() == [NONE, 0]  # a call happens on no device, whatever its details say
    assert timeline.stream.tolist() == [NONE, 20]
    assert timeline.correlation.tolist() == [9, 9]
    assert timeline.bytes.tolist() == [NONE, 4096]
    assert timeline.devices == {0: "NVIDIA H100"}
    assert timeline.source == "torch"


def test_details_of_an_operator_are_its_own(tmp_path: Path) -> None:
    timeline = read(tmp_path, kf.span("cpu_op", "record", 1, 1, device="cuda:0", stream=[1], correlation=5, bytes=8))
    assert [getattr(timeline, key)[0] for key in ("device", "stream", "correlation", "bytes")] == [NONE] * 4


def test_devices_and_streams_of_old_files_are_only_in_pid_and_tid(tmp_path: Path) -> None:
    timeline = read(tmp_path, kf.span("Kernel", "k", 1, 1, "1", "stream 7 ", **{"External id": 3}), devices=("A", "B"))
    assert (timeline.device[0], timeline.stream[0]) == (1, 7)
    assert timeline.devices == {1: "B"}
    assert timeline.facts["accelerators"] == ["A", "B"]


def test_numbers_as_texts(tmp_path: Path) -> None:
    timeline = read(
        tmp_path, kf.span("cpu_op", "a", 1, 1, "77", "thread 99 (python)"), kf.span("cpu_op", "b", 2, 1, 5, -7)
    )
    assert timeline.process.tolist() == [77, 5]
    assert timeline.thread[0] == 99
    assert timeline.thread[1] >= 0


def test_range_on_the_device_keeps_its_device(tmp_path: Path) -> None:
    timeline = read(tmp_path, kf.step(1, 9), kf.span("gpu_user_annotation", "step", 5, 9, 0, 7, device=0, stream=7))
    assert timeline.kind.tolist() == [Kind.RANGE, Kind.RANGE]
    assert timeline.device.tolist() == [NONE, 0]


def test_kernels_of_a_graph_are_marked(tmp_path: Path) -> None:
    timeline = read(
        tmp_path,
        kf.span("cuda_runtime", "cudaGraphLaunch", 1, 1, correlation=5),
        kf.span("cuda_runtime", "cudaLaunchKernel", 3, 1, correlation=6),
        kf.kernel("in graph", 10, 1, correlation=5),
        kf.kernel("in graph too", 12, 1, correlation=5),
        kf.kernel("alone", 14, 1, correlation=6),
        kf.kernel("numbered", 16, 1, correlation=5, **{"graph id": 3}),
    )
    assert timeline.graph.tolist() == [NONE, NONE, 0, 0, NONE, 3]


def test_python_functions_are_left_out_and_counted(tmp_path: Path) -> None:
    timeline = read(tmp_path, *[kf.span("python_function", f"f{n}", n, 1) for n in range(7)], kf.step(0, 9))
    assert len(timeline) == 1
    assert timeline.facts["left_out"] == {"python_function": 7}


def test_facts(tmp_path: Path) -> None:
    memory = [
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1, "s": "t", "args": args}
        for args in (
            {"Total Allocated": 500, "Device Type": 1, "Device Id": 0},
            {"Total Allocated": 300, "Device Type": 1, "Device Id": 0},
            {"Total Allocated": 900, "Device Type": 0, "Device Id": -1},
        )
    ]
    facts = read(tmp_path, kf.step(0, 9), *memory, rank=2, ranks=4, host_name="box").facts
    assert facts["peak_memory_bytes"] == 500
    assert (facts["rank"], facts["ranks"], facts["host"], facts["vllm_version"]) == (2, 4, "box", "0.32.0")
    assert facts["processes"] == {str(kf.HOST_PID): "VLLM::EngineCore"}


# -- where instants count from


def test_base_time(tmp_path: Path) -> None:
    offset_us = (NOW_NS - BASE_NS) / 1000
    timeline = read(tmp_path, kf.step(offset_us, 1000.0), base_ns=BASE_NS)
    assert timeline.start[0] == NOW_NS
    assert timeline.alignment is not None
    assert "base" in timeline.alignment.method
    assert timeline.alignment.residual_ns is None
    assert timeline.alignment.reason


def test_base_time_after_the_events(tmp_path: Path) -> None:
    trace = kf.document([kf.step(5, 9)])
    trace |= {"baseTimeNanoseconds": BASE_NS, "moreProperties": [{"a": [1]}, {"b": [{}]}]}
    assert read_kineto(kf.write(tmp_path / "t.json", trace)).start[0] == BASE_NS + 5000


@pytest.mark.parametrize("base_ns", [None, 0, BASE_NS])
def test_microseconds_since_1970(tmp_path: Path, base_ns: int | None) -> None:
    timeline = read(tmp_path, kf.step(NOW_NS // 1000, 1000), base_ns=base_ns)
    assert abs(timeline.start[0] - NOW_NS) <= 250
    assert timeline.alignment is not None
    assert "1970" in timeline.alignment.method


@pytest.mark.parametrize("clock", [time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME])
def test_since_this_machine_started(tmp_path: Path, clock: int) -> None:
    now = time.clock_gettime_ns(clock)
    wall = time.time_ns()
    trace = kf.document([kf.step(now / 1000 - 2_000_000, 1_000_000)])
    timeline = read_kineto(kf.write(tmp_path / "t.json", trace, written_ns=wall))
    assert abs(timeline.start[0] - (wall - 2_000_000_000)) < 50_000_000
    assert timeline.alignment is not None
    assert "start" in timeline.alignment.method


@pytest.mark.parametrize("age_s", [-7200, 1200])
def test_since_the_start_of_another_machine(tmp_path: Path, age_s: int) -> None:
    begin = time.monotonic_ns() / 1000 - 2_000_000
    written = time.time_ns() - age_s * 1_000_000_000
    timeline = read_kineto(kf.write(tmp_path / "t.json", kf.document([kf.step(begin, 10)]), written_ns=written))
    assert timeline.alignment is None
    assert abs(timeline.start[0] - begin * 1000) < 1000  # the file's own
    assert any("count from" in note for note in timeline.notes)


def test_from_zero_is_not_taken_for_since_a_start_a_moment_ago(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: 100_000_000)
    assert read(tmp_path, *kf.decode_steps(3)).alignment is None


def test_base_time_that_is_no_number(tmp_path: Path) -> None:
    trace = kf.document([kf.step(5, 9)]) | {"baseTimeNanoseconds": "soon"}
    assert read_kineto(kf.write(tmp_path / "t.json", trace)).alignment is None


def test_from_zero(tmp_path: Path) -> None:
    timeline = read(tmp_path, *kf.decode_steps(3))
    assert timeline.alignment is None
    assert timeline.span == (0, 29_500_000)


# -- rows that cannot be


def test_absurd_rows_are_left_out_with_a_note(tmp_path: Path) -> None:
    overflowed = kf.kernel("overflowed", 1_000.0, 1.8e16)
    backwards = kf.kernel("backwards", 1_000.0, -5.0)
    unset = kf.kernel("unset", -9e12, 5.0)
    for stated in (None, (0.0, 30_000.0)):
        timeline = read(tmp_path, *kf.decode_steps(3), overflowed, backwards, unset, stated=stated)
        assert len(timeline) == 12
        assert any(note.startswith("3 events were left out") for note in timeline.notes)
        assert timeline.span[1] <= 30_000_000


def test_long_kernel_that_fits_is_kept(tmp_path: Path) -> None:
    assert len(read(tmp_path, kf.kernel("long", 0, 50e6), stated=(0.0, 50e6))) == 1


def test_stated_span_of_another_clock_is_not_believed(tmp_path: Path) -> None:
    timeline = read(tmp_path, *kf.decode_steps(2), stated=(9e12, 9.1e12))
    assert len(timeline) == 8
    assert timeline.span == (0, 19_500_000)


def test_events_without_a_duration_are_left_out_with_a_note(tmp_path: Path) -> None:
    timeline = read(tmp_path, kf.step(0, 9), kf.span("cpu_op", "still running", 5, None))
    assert len(timeline) == 1
    assert "1 events were left out: they have no duration" in timeline.notes


def test_span_is_what_the_profiler_states(tmp_path: Path) -> None:
    timeline = read(tmp_path, kf.step(1000, 50), stated=(400.0, 3000.0), base_ns=BASE_NS)
    assert timeline.span == (BASE_NS + 400_000, BASE_NS + 3_000_000)


def test_no_rows(tmp_path: Path) -> None:
    timeline = read(tmp_path, stated=(400.0, 3000.0), base_ns=BASE_NS)
    assert len(timeline) == 0
    assert timeline.alignment is not None


# -- texts


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
@pytest.mark.parametrize("piece", [64, 1000, 1 << 20])
def test_any_layout_in_pieces_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None, name: str, piece: int
) -> None:
    monkeypatch.setattr(stream, "PIECE", piece)
    odd = kf.span("cpu_op", 'a "}, {" b \\ ], [ é', 3, 1, list=[{"x": 1}, {"y": [{}, {}]}], text="}]}, {")
    trace = kf.document([odd, *kf.decode_steps(20), odd], base_ns=BASE_NS)
    timeline = read_kineto(kf.write(tmp_path / name, trace, indent=indent))
    assert len(timeline) == 82
    assert names(timeline).count(odd["name"]) == 2
    assert timeline.facts["ranks"] == 1


def test_what_is_no_json_in_kinetos_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PIECE", 500)
    events = [kf.memcpy("HtoD", n, 0, 200, rate="BANDWIDTH") for n in range(30)] + [
        kf.span("cpu_op", "x: inf ity", 99, 1)
    ]
    data = kf.text(kf.document(events)).replace(b'"BANDWIDTH"', b"inf").replace(b"x: inf ity", b"x: inf \xff")
    timeline = read_kineto(kf.write(tmp_path / "t.json", data))
    assert len(timeline) == 31
    assert names(timeline)[-1] == "x: inf \N{REPLACEMENT CHARACTER}"


def test_unfinished_text_is_told(tmp_path: Path) -> None:
    whole = kf.text(kf.document(kf.decode_steps(50)))
    for cut in (len(whole) // 2, whole.rindex(b"]"), len(whole) - 1):
        with pytest.raises(ValueError, match="not a whole trace") as told:
            read_kineto(kf.write(tmp_path / "t.json", whole[:cut]))
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("at", [0.3, 0.6, 0.999])
def test_unfinished_gzip_is_told(tmp_path: Path, at: float) -> None:
    packed = gzip.compress(kf.text(kf.document(kf.decode_steps(500))))
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed[: int(len(packed) * at)])
    with pytest.raises(ValueError, match="not a whole trace") as told:
        read_kineto(path)
    assert "\n" not in str(told.value)


def test_damaged_gzip_is_told(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(kf.text(kf.document(kf.decode_steps(500)))))
    packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    with pytest.raises(ValueError, match="not a whole trace"):
        read_kineto(path)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "no trace of torch's profiler"),
        (b'{"a": [1, 2]}', "no trace of torch's profiler"),
        (b"\x00\x01 not even text", "no trace of torch's profiler"),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}]}', "something else"),
        (b'{"traceEvents": [{"ph": "X", "cat": "toplevel", "name": "a", "ts": 1, "dur": 1}]}', "something else"),
        (b'{"displayTimeUnit": "ns", "traceEvents": []}', "something else"),
        (b'{"traceEvents": [1, 2]}', "no trace of torch's profiler"),
        (b'{"traceEvents": [{"ph": "X", "name": null}]}', "in one of its events, Expected `str`, got `null`"),
    ],
)
def test_foreign_files_are_told(tmp_path: Path, data: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told) as raised:
        read_kineto(kf.write(tmp_path / "t.json", data))
    assert "\n" not in str(raised.value)


# -- several ranks


def write_rank(tmp_path: Path, rank: int, events: list[dict[str, Any]], **options: Any) -> Path:
    options = {"base_ns": BASE_NS, "ranks": 2, "rank": rank, **options}
    return kf.write(tmp_path / f"rank{rank}.pt.trace.json.gz", kf.document(events, **options))


def test_ranks_on_devices_of_their_own(tmp_path: Path) -> None:
    first = [kf.kernel("a", 10, 5, device=0), kf.span("cpu_op", "x", 1, 1, 100)]
    second = [kf.kernel("b", 8, 5, device=1), kf.kernel("a", 20, 5, device=1), kf.span("cpu_op", "x", 2, 1, 200)]
    merged = read_ranks(
        [
            write_rank(tmp_path, 0, first, devices=("A", "B"), stated=(0.0, 50.0)),
            write_rank(tmp_path, 1, second, devices=("A", "B"), stated=(1.0, 60.0)),
        ]
    )
    assert list(zip(names(merged), merged.device.tolist(), merged.process.tolist(), strict=True)) == [
        ("x", NONE, 100),
        ("x", NONE, 200),
        ("b", 1, 200),
        ("a", 0, 100),
        ("a", 1, 200),
    ]
    assert merged.devices == {0: "A", 1: "B"}
    assert merged.span == (BASE_NS, BASE_NS + 60_000)
    assert merged.alignment is not None
    assert merged.notes == ()


def test_ranks_that_number_alike_are_told_apart(tmp_path: Path) -> None:
    files = [write_rank(tmp_path, rank, kf.decode_steps(2, rank)) for rank in range(3)]
    merged = read_ranks(files)
    assert sorted(merged.devices) == [0, 1, 2]
    assert len(set(merged.process.tolist())) == 3
    launched = merged.take(merged.kind == Kind.COMPUTE)
    calls = merged.take(merged.kind == Kind.API)
    keys = set(zip(calls.process.tolist(), calls.correlation.tolist(), strict=True))
    assert set(zip(launched.process.tolist(), launched.correlation.tolist(), strict=True)) == keys
    assert len(keys) == 6
    assert any("renumbered: 0 → 1" in note for note in merged.notes)


def test_a_rank_on_an_unknown_clock_is_left_out_beside_others(tmp_path: Path) -> None:
    files = [write_rank(tmp_path, 1, [kf.step(1, 1)], base_ns=None), write_rank(tmp_path, 0, [kf.step(1, 1)])]
    found, alone = read_ranks(files), read_kineto(files[1])
    assert (found.span, found.alignment, len(found)) == (alone.span, alone.alignment, 1)
    assert found.notes == ("1 of 2 traces left out: nothing says what their instants count from",)


def test_ranks_on_one_unknown_clock_stay_together(tmp_path: Path) -> None:
    files = [write_rank(tmp_path, rank, [kf.step(1, 1)], base_ns=None) for rank in (0, 1)]
    assert (len(read_ranks(files)), read_ranks(files).alignment) == (2, None)


def test_no_ranks() -> None:
    with pytest.raises(ValueError, match="no trace"):
        read_ranks([])


def test_file_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PIECE", 10_000)
    path = kf.write(tmp_path / "t.json.gz", kf.document(kf.decode_steps(500)))
    lists = [len(events) for events in stream.EventStream(path)]
    assert sum(lists) == 2001
    assert max(lists) < 100


def damaged(whole: bytes, chance: random.Random) -> bytes:
    data = bytearray(whole)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                del data[at : at + chance.randrange(1, 30)]
            case 2:
                data[at:at] = chance.choice([b'"', b"}", b"]", b"{", b"[", b",", b"1e400", b"9" * 30, b"true", b"nan"])
            case _:
                del data[at + 1 :]
    return bytes(data)


def test_no_damage_leads_to_anything_but_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kf.text(kf.document([*kf.decode_steps(4), kf.memcpy("HtoD", 3, 2, 5)], stated=(0, 9e4)))
    chance, refused = random.Random(1), 0
    for _ in range(300):
        monkeypatch.setattr(stream, "PIECE", chance.choice([100, 1000, 1 << 20]))
        try:
            read_kineto(kf.write(tmp_path / "t.json", damaged(whole, chance)))
        except ValueError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 100


def test_devices_that_are_listed_oddly_have_no_name(tmp_path: Path) -> None:
    listed = [{"id": [0], "name": "a"}, {"id": "0", "name": "b"}, {"name": "c"}, 3]
    trace = kf.document([kf.kernel("k", 1, 2)]) | {"deviceProperties": listed}
    assert read_kineto(kf.write(tmp_path / "t.json", trace)).devices == {0: "device 0"}
