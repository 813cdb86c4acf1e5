"""Exports of every generation of the schema, read back as what was put into them."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsys_files import EPOCH_NS, GENERATIONS, PID, TID, NsysFile
from servebench.profile.readers.nsys import read_nsys
from servebench.profile.timeline import NONE, Kind, Timeline


def rows(timeline: Timeline, *kinds: Kind) -> list[tuple[str, int, int]]:
    """Name, start and end after the session's start of the rows of some kinds."""
    some = timeline.take(timeline.of_kind(*kinds))
    times = zip(some.name.tolist(), some.start.tolist(), some.end.tolist(), strict=True)
    return [(some.names[name], start - EPOCH_NS, end - EPOCH_NS) for name, start, end in times]


def only(timeline: Timeline, kind: Kind) -> dict[str, Any]:
    """The columns of the only row of a kind."""
    one = timeline.take(timeline.of_kind(kind))
    assert len(one) == 1
    keys = ("device", "stream", "process", "thread", "correlation", "bytes", "graph")
    return {key: int(getattr(one, key)[0]) for key in keys}


@pytest.fixture(params=GENERATIONS)
def file(request: pytest.FixtureRequest) -> NsysFile:
    return NsysFile(request.param)


def test_a_kernel_and_the_call_that_launched_it(file: NsysFile, tmp_path: Path) -> None:
    file.kernel("void gemm<float, 4>(int)", 1_000, 5_000, device=1, stream=9, launch=(200, 400))
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert rows(timeline, Kind.COMPUTE) == [("void gemm<float, 4>(int)", 1_000, 5_000)]
    assert rows(timeline, Kind.API) == [("cudaLaunchKernel_v7000", 200, 400)]
    place = {"bytes": NONE, "graph": NONE, "process": PID, "correlation": 1}
    assert only(timeline, Kind.COMPUTE) == {"device": 1, "stream": 9, "thread": NONE, **place}
    assert only(timeline, Kind.API) == {"device": NONE, "stream": NONE, "thread": TID, **place}


@pytest.mark.parametrize(
    ("direction", "kind"),
    [
        ("HtoD", Kind.COPY_HTOD),
        ("DtoH", Kind.COPY_DTOH),
        ("DtoD", Kind.COPY_DTOD),
        ("PtoP", Kind.COPY_PEER),
        ("HtoH", Kind.COPY_HTOH),
        ("HtoA", Kind.COPY_HTOD),
        ("UVM_DtoH", Kind.COPY_DTOH),
        ("Unknown", Kind.COPY_OTHER),
    ],
)
def test_copies_by_direction(file: NsysFile, tmp_path: Path, direction: str, kind: Kind) -> None:
    file.copy(direction, 10, 20, size=12_345, stream=3)
    file.copy("HtoD" if direction != "HtoD" else "DtoH", 30, 40)  # another in the same block
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    first = timeline.take(np.array([0]))
    assert (first.kind[0], first.bytes[0], first.stream[0]) == (kind, 12_345, 3)
    assert timeline.on_device.all()


def test_a_fill(file: NsysFile, tmp_path: Path) -> None:
    file.fill(10, 20, size=77)
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert rows(timeline, Kind.FILL) == [("memset", 10, 20)]
    assert only(timeline, Kind.FILL)["bytes"] == 77


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(void)",
    ],
)
def test_collectives_are_communication(file: NsysFile, tmp_path: Path, name: str) -> None:
    file.kernel(name, 10, 20)
    file.kernel("reduce_kernel", 30, 40)
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert rows(timeline, Kind.COMMUNICATION) == [(name, 10, 20)]
    assert rows(timeline, Kind.COMPUTE) == [("reduce_kernel", 30, 40)]


def test_kernels_of_a_graph_know_it_and_share_a_launch(file: NsysFile, tmp_path: Path) -> None:
    launch = file.graph_launch((7_000, 7_500), [("attn", 8_000, 9_000), ("mlp", 9_000, 9_500)], graph=3)
    file.graph_launch((17_000, 17_500), [("attn", 18_000, 19_000), ("mlp", 19_000, 19_500)], graph=5)
    file.copy("DtoH", 20_000, 20_100, graph=5, correlation=launch + 1, node=7)
    file.kernel("eager", 30_000, 30_100)
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    device = timeline.take(timeline.on_device)
    assert device.graph.tolist() == [3, 3, 5, 5, 5, NONE]
    assert device.correlation.tolist() == [launch, launch, *[launch + 1] * 3, launch + 2]
    assert timeline.facts["graphs"] == 2


def test_graphs_traced_as_a_whole(file: NsysFile, tmp_path: Path) -> None:
    file.whole_graph(100, 200, graph=8, launch=(10, 20))
    file.whole_graph(0, 0, graph=8)  # CUPTI could not tell when
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert rows(timeline, Kind.GRAPH) == [("CUDA graph 8", 100, 200)]
    assert only(timeline, Kind.GRAPH)["graph"] == 8
    assert "1 replays of graphs left out: their instants are absurd" in timeline.notes


def test_correlation_ids_repeat_across_processes(file: NsysFile, tmp_path: Path) -> None:
    for pid, device in ((100, 0), (200, 1)):
        file.kernel("k", 1_000 + pid, 2_000, device=device, pid=pid, tid=pid + 1, launch=(pid, pid + 5))
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert timeline.correlation.tolist() == [1] * 4
    assert timeline.process.tolist() == [100, 200, 100, 200]
    assert timeline.thread.tolist() == [101, 201, NONE, NONE]


def test_a_kernel_may_start_before_its_launch_returned(file: NsysFile, tmp_path: Path) -> None:
    file.kernel("k", 250, 300, launch=(200, 400))
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert rows(timeline, Kind.API, Kind.COMPUTE) == [("cudaLaunchKernel_v7000", 200, 400), ("k", 250, 300)]


@pytest.mark.parametrize("name", ["cudaStreamSynchronize_v3020", "cuCtxSynchronize", "cudaEventSynchronize"])
def test_calls_that_wait_by_their_names(file: NsysFile, tmp_path: Path, name: str) -> None:
    file.api(name, 10, 20)
    file.api("cudaStreamWaitEvent_v3020", 30, 40)
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert rows(timeline, Kind.SYNC) == [(name, 10, 20)]
    assert rows(timeline, Kind.API) == [("cudaStreamWaitEvent_v3020", 30, 40)]


def test_a_record_of_a_wait_marks_its_call_and_is_no_second_row(file: NsysFile, tmp_path: Path) -> None:
    waited = file.api("cudaMemcpy_v3020", 10, 20)
    file.sync(11, 19, correlation=waited)
    file.sync(12, 18, correlation=waited)  # of another stream
    other = file.api("cudaMemcpy_v3020", 30, 40, pid=77)  # the same id in another process: it did not wait
    assert other == waited
    file.sync(50, 60, what="context", correlation=99)  # its call was not traced
    file.sync(70, 80, what="stream_wait", correlation=100)  # a stream waited, not the host
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert rows(timeline, Kind.SYNC) == [("cudaMemcpy_v3020", 10, 20), ("context synchronize", 50, 60)]
    assert rows(timeline, Kind.API) == [("cudaMemcpy_v3020", 30, 40)]
    assert not timeline.on_device.any()


@pytest.mark.parametrize("registered", [False, True])
def test_ranges_and_marks(file: NsysFile, tmp_path: Path, registered: bool) -> None:
    file.range("execute_context_0(0)_generation_8(8)", 100, 900, registered=registered)
    file.range("model", 200, 800, registered=registered)
    file.range("request", 300, 950, registered=registered, push_pop=False, end_tid=TID + 1)
    file.mark("here", 500, registered=registered)
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert rows(timeline, Kind.RANGE) == [
        ("execute_context_0(0)_generation_8(8)", 100, 900),
        ("model", 200, 800),
        ("request", 300, 950),
        ("here", 500, 500),
    ]
    assert set(timeline.thread.tolist()) == {TID}
    assert set(timeline.process.tolist()) == {PID}


def test_a_domain_is_told_by_its_name(file: NsysFile, tmp_path: Path) -> None:
    file.domain("NCCL", 2)
    file.domain("other", 2, pid=77)
    file.range("ncclAllReduce", 100, 200, domain=2)
    file.range("ncclAllReduce", 300, 400)
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert rows(timeline, Kind.RANGE) == [("NCCL:ncclAllReduce", 100, 200), ("ncclAllReduce", 300, 400)]


def test_a_range_still_open_ends_with_the_capture(file: NsysFile, tmp_path: Path) -> None:
    file.range("a", 100, None)
    file.range("b", 300, 400)
    file.kernel("k", 350, 600)
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert rows(timeline, Kind.RANGE) == [("a", 100, 600), ("b", 300, 400)]
    assert timeline.notes == ("1 NVTX ranges were still open when the capture ended, and are taken to end there",)


def test_a_range_still_open_ends_when_the_capture_stopped_if_the_file_tells(tmp_path: Path) -> None:
    file = NsysFile("3.13")
    file.diagnostic("Profiling has started.", severity=1, at=0)
    file.diagnostic("Profiling has stopped.", severity=1, at=5_000)
    file.range("a", 100, None)
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert rows(timeline, Kind.RANGE) == [("a", 100, 5_000)]
    assert timeline.span == (EPOCH_NS, EPOCH_NS + 5_000)


def test_calls_of_the_system_and_time_of_the_profiler(file: NsysFile, tmp_path: Path) -> None:
    file.system("epoll_wait", 10, 900)
    file.system("OS runtime libraries profiling started", -9_000, -9_000)  # no call, and before the capture
    file.system("OS runtime libraries profiling finished", 950, 950)
    file.overhead("CUPTI: Instrumentation", 20, 30, tid=5)
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert rows(timeline, Kind.SYSTEM) == [("epoll_wait", 10, 900)]
    assert rows(timeline, Kind.OVERHEAD) == [("CUPTI: Instrumentation", 20, 30)]
    assert timeline.thread.tolist() == [TID, 5]


def test_absurd_instants_are_left_out_and_said(file: NsysFile, tmp_path: Path) -> None:
    file.kernel("good", 100, 200)
    file.kernel("backwards", 300, 200)
    file.kernel("endless", 300, 2**60)
    file.kernel("long ago", -(2**61), -(2**61) + 5)
    file.kernel("in a century", 2**62, 2**62 + 5)
    file.kernel("beyond what CLOCK_REALTIME can tell", 2**63 - 9, 2**63 - 5)
    file.kernel("at no time", 0, 0)  # CUPTI could not tell when
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert rows(timeline, Kind.COMPUTE) == [("good", 100, 200)]
    assert timeline.notes == ("6 kernels left out: their instants are absurd",)
    assert timeline.span == (EPOCH_NS + 100, EPOCH_NS + 200)


def test_a_name_that_the_file_does_not_have(file: NsysFile, tmp_path: Path) -> None:
    file.kernel("k", 100, 200)
    file.strings.clear()
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert rows(timeline, Kind.COMPUTE) == [("(no name)", 100, 200)]


@pytest.mark.parametrize(
    ("value", "name"), [("NULL", "(no name)"), ("x'6bff'", "k\N{REPLACEMENT CHARACTER}"), ("7", "7")]
)
def test_a_name_that_is_no_text(file: NsysFile, tmp_path: Path, value: str, name: str) -> None:
    file.kernel("k", 100, 200)
    file.range("r", 100, 200)
    path = file.write(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(
            "ALTER TABLE StringIds RENAME TO Old; CREATE TABLE StringIds (id INTEGER, value);"
            f"INSERT INTO StringIds SELECT id, {value} FROM Old; UPDATE NVTX_EVENTS SET text = {value}"
        )
    timeline = read_nsys(path)
    assert rows(timeline, Kind.COMPUTE) == rows(timeline, Kind.RANGE) == [(name, 100, 200)]


def test_graph_0_is_none(tmp_path: Path) -> None:
    file = NsysFile("3.13")
    file.kernel("k", 100, 200, graph=0, node=0)
    assert only(read_nsys(file.write(tmp_path / "a.sqlite")), Kind.COMPUTE)["graph"] == NONE


def test_names_that_many_rows_share_are_kept_once(file: NsysFile, tmp_path: Path) -> None:
    for at in range(0, 3_000, 10):
        file.kernel(f"kernel {at % 70}", at, at + 5, launch=(at, at + 1))
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert rows(timeline, Kind.COMPUTE) == [(f"kernel {at % 70}", at, at + 5) for at in range(0, 3_000, 10)]
    assert len(timeline.names) == 8


def test_an_export_without_rows(file: NsysFile, tmp_path: Path) -> None:
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert (len(timeline), timeline.span, timeline.notes) == (0, (0, 0), ())


def test_all_at_once_and_out_of_order(file: NsysFile, tmp_path: Path) -> None:
    file.range("r", 900, 950)
    file.system("poll", 700, 800)
    file.api("cudaMalloc", 500, 600)
    file.whole_graph(400, 450)
    file.fill(300, 350)
    file.copy("DtoH", 200, 250)
    file.kernel("k", 100, 150)
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert (timeline.start - EPOCH_NS).tolist() == [100, 200, 300, 400, 500, 700, 900]
    names = ["k", "memcpy DtoH", "memset", "CUDA graph 1", "cudaMalloc", "poll", "r"]
    assert [timeline.names[name] for name in timeline.name.tolist()] == names
    assert timeline.span == (EPOCH_NS + 100, EPOCH_NS + 950)
