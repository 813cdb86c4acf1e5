from contextlib import contextmanager

from servebench.telemetry.nvml import NvmlSource
from servebench.testing.nvml_stub import StubClock, StubGpu, StubMachine, install


@contextmanager
def sampled(tmp_path, *gpus):
    library = install(StubMachine(gpus=gpus), tmp_path)
    clock = StubClock(library)
    source = NvmlSource(20, library, clock=clock)
    source.open()
    clock.set(0)
    try:
        yield source, clock
    finally:
        source.close()


def last(source, clock, second):
    clock.set(second)
    return {reading[0]: reading[2] for reading in source.final_sample() if reading[1] == "xid"}


def test_the_last_xid_of_each_gpu(tmp_path):
    gpus = StubGpu(xids=((1.0, 13), (3.0, 31))), StubGpu(xids=((2.0, 94),))
    with sampled(tmp_path, *gpus) as (source, clock):
        assert last(source, clock, 0) == {"gpu-0": 0, "gpu-1": 0}
        assert last(source, clock, 1.5) == {"gpu-0": 13, "gpu-1": 0}
        assert last(source, clock, 5) == {"gpu-0": 31, "gpu-1": 94}
        devices = source.facts()["devices"]
    assert [[entry["xid"] for entry in device["xids"]] for device in devices] == [[13, 31], [94]]
    assert devices[0]["xids"][0]["t_ns"] < devices[0]["xids"][1]["t_ns"]


def test_several_at_once_are_all_kept(tmp_path):
    with sampled(tmp_path, StubGpu(xids=tuple((1.0, 40 + i) for i in range(5)))) as (source, clock):
        assert last(source, clock, 2) == {"gpu-0": 44}
        assert len(source.facts()["devices"][0]["xids"]) == 5


def test_a_lost_gpu_leaves_its_last_word_and_the_others_theirs(tmp_path):
    gpus = StubGpu(xids=((2.0, 79),), lost=2.0), StubGpu(), StubGpu(lost=2.0)
    with sampled(tmp_path, *gpus) as (source, clock):
        assert last(source, clock, 1) == {"gpu-0": 0, "gpu-1": 0, "gpu-2": 0}
        assert last(source, clock, 3) == {"gpu-0": 79, "gpu-1": 0, "gpu-2": None}


def test_a_gpu_without_events_is_not_asked(tmp_path):
    with sampled(tmp_path, StubGpu(refused=("events",)), StubGpu(xids=((0.0, 8),))) as (source, clock):
        assert last(source, clock, 1) == {"gpu-1": 8}
        devices = source.facts()["devices"]
    assert devices[0]["not_supported"]["xid"] == "Not Supported"
    assert devices[0]["xids"] == []
