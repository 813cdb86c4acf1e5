import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from servebench.telemetry.nvml import NvmlSource
from servebench.telemetry.nvml_processes import Owners, Whose
from servebench.testing.nvml_stub import GIB, StubClock, StubGpu, StubMachine, StubProcess, install

NOBODY = 4_100_000  # beyond the largest pid that Linux gives


@pytest.fixture
def proc(tmp_path):
    """Makes processes in a /proc of our own: proc(pid, parent, session)."""
    folder = tmp_path / "proc"
    folder.mkdir()

    def add(pid, parent, session=0, name="server"):
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} {pid} {session} 0 -1 4194304")
        return folder

    return add


def test_the_server_and_its_descendants_are_its_own(proc):
    proc(10, 1)
    proc(11, 10)
    proc(12, 11)
    assert Owners([10], proc(20, 1)).judge([10, 11, 12, 20]) == {
        10: Whose.SERVER,
        11: Whose.SERVER,
        12: Whose.SERVER,
        20: Whose.FOREIGN,
    }


def test_an_orphan_is_known_by_its_session(proc):
    proc(10, 1, session=10)
    proc(12, 1, session=10)
    assert Owners([10], proc(13, 12, session=10)).judge([12, 13]) == {12: Whose.SERVER, 13: Whose.SERVER}


def test_the_session_of_a_shell_that_the_server_does_not_lead_says_nothing(proc):
    proc(5, 1, session=5)
    proc(10, 5, session=5)
    assert Owners([10], proc(12, 5, session=5)).judge([12]) == {12: Whose.FOREIGN}


def test_a_name_with_brackets_and_spaces_does_not_confuse(proc):
    proc(10, 1)
    assert Owners([10], proc(11, 10, name="a) S 1 1 1 (b")).judge([11]) == {11: Whose.SERVER}


def test_a_process_that_was_the_servers_stays_it_after_its_end(proc):
    proc(10, 1)
    folder = proc(11, 10)
    owners = Owners([10], folder)
    owners.judge([11])
    (folder / "11" / "stat").unlink()
    (folder / "11").rmdir()
    assert owners.judge([11]) == {11: Whose.SERVER}


def test_a_number_that_does_not_exist_here_is_unknown(proc):
    assert Owners([10], proc(10, 1)).judge([70_000]) == {70_000: Whose.UNKNOWN}


def test_such_a_number_is_foreign_once_the_numbers_are_known_to_be_ours(proc):
    assert Owners([10], proc(10, 1)).judge([10, 70_000]) == {10: Whose.SERVER, 70_000: Whose.FOREIGN}


def test_nobody_is_foreign_to_a_server_that_is_not_known(proc):
    assert Owners([], proc(20, 1)).judge([20]) == {20: Whose.UNKNOWN}


def test_circles_end(proc):
    proc(11, 12)
    assert Owners([10], proc(12, 11)).judge([11]) == {11: Whose.FOREIGN}


@contextmanager
def sampled(tmp_path, *gpus, server_pids):
    library = install(StubMachine(gpus=gpus), tmp_path)
    clock = StubClock(library)
    source = NvmlSource(20, library, server_pids, clock=clock)
    source.open()
    clock.set(0)
    try:
        yield source, clock
    finally:
        source.close()


def counts(readings, device="gpu-0"):
    seen = {name: value for where, name, value, *_ in readings if where == device}
    return seen["processes"], seen["foreign_processes"]


def test_a_foreign_process_is_seen_while_it_is_there(tmp_path):
    processes = (StubProcess(os.getpid()), StubProcess(os.getppid(), 2 * GIB, start=2, end=4))
    with sampled(tmp_path, StubGpu(processes=processes), server_pids=[os.getpid()]) as (source, clock):
        seen = []
        for second in (0, 2.5, 5):
            clock.set(second)
            seen.append(counts(source.final_sample()))
        device = source.facts()["devices"][0]
    assert seen == [(1, 0), (2, 1), (1, 0)]
    assert {entry["whose"]: entry["memory_bytes"] for entry in device["seen_processes"]} == {
        "server": GIB,
        "foreign": 2 * GIB,
    }
    assert device["foreign_reason"] is None


def test_a_real_child_of_the_server_is_the_servers(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        gpu = StubGpu(processes=(StubProcess(child.pid),))
        with sampled(tmp_path, gpu, server_pids=[os.getpid()]) as (source, _):
            assert counts(source.sample()) == (1, 0)
            assert source.facts()["devices"][0]["server_uses"] is True
        child.communicate(b"\n")


def test_of_two_gpus_the_server_uses_one(tmp_path):
    gpus = StubGpu(processes=(StubProcess(os.getpid()),)), StubGpu()
    with sampled(tmp_path, *gpus, server_pids=[os.getpid()]) as (source, _):
        readings = source.sample()
        devices = source.facts()["devices"]
    assert counts(readings, "gpu-0") == (1, 0)
    assert counts(readings, "gpu-1") == (0, 0)
    assert [device["server_uses"] for device in devices] == [True, False]
    assert devices[1]["server_uses_reason"] == "no process of the server has memory on it"


def test_numbers_of_another_namespace_count_nobody_as_foreign(tmp_path):
    gpus = StubGpu(processes=(StubProcess(NOBODY),)), StubGpu()
    with sampled(tmp_path, *gpus, server_pids=[os.getpid()]) as (source, _):
        assert counts(source.sample()) == (1, None)
        devices = source.facts()["devices"]
    assert [device["server_uses"] for device in devices] == [None, False]
    assert "another pid namespace" in devices[0]["foreign_reason"]


def test_the_only_gpu_is_the_servers_even_then(tmp_path):
    gpu = StubGpu(processes=(StubProcess(NOBODY),))
    with sampled(tmp_path, gpu, server_pids=[os.getpid()]) as (source, _):
        source.sample()
        device = source.facts()["devices"][0]
    assert device["server_uses"] is True
    assert "the only GPU" in device["server_uses_reason"]


def test_processes_that_a_container_hides_are_not_none(tmp_path):
    gpu = StubGpu(values={"mem_used": 40 * GIB})
    with sampled(tmp_path, gpu, server_pids=[os.getpid()]) as (source, _):
        assert counts(source.sample()) == (None, None)
        device = source.facts()["devices"][0]
    assert "a container hides them" in device["foreign_reason"]
    assert device["server_uses"] is True


def test_an_idle_gpu_has_no_processes(tmp_path):
    with sampled(tmp_path, StubGpu(), server_pids=[os.getpid()]) as (source, _):
        assert counts(source.sample()) == (0, 0)
        assert source.facts()["devices"][0]["server_uses"] is False


def test_without_the_servers_numbers_processes_are_counted_alone(tmp_path):
    with sampled(tmp_path, StubGpu(processes=(StubProcess(os.getpid()),)), server_pids=[]) as (source, _):
        assert counts(source.sample()) == (1, None)
        device = source.facts()["devices"][0]
    assert device["server_uses"] is None
    assert device["foreign_reason"] == device["server_uses_reason"] == "the server's processes are not known"


def test_memory_that_the_driver_does_not_tell_is_none(tmp_path):
    gpu = StubGpu(processes=(StubProcess(os.getpid(), None),))
    with sampled(tmp_path, gpu, server_pids=[os.getpid()]) as (source, _):
        assert counts(source.sample()) == (1, 0)
        assert source.facts()["devices"][0]["seen_processes"][0]["memory_bytes"] is None


def test_a_driver_that_lists_no_processes(tmp_path):
    with sampled(tmp_path, StubGpu(refused=("processes",)), server_pids=[os.getpid()]) as (source, _):
        source.sample()
        device = source.facts()["devices"][0]
    assert device["server_uses"] is None
    assert device["server_uses_reason"] == "the driver does not list the processes"
