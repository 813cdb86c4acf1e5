"""What an export tells about itself: clock, devices, versions, memory, messages."""

from pathlib import Path

import pytest

from nsys_files import EPOCH_NS, GENERATIONS, NsysFile
from servebench.profile.readers.nsys import read_nsys

SAID = [generation for generation in GENERATIONS if generation != "2.9"]  # 2.9 had no table of messages


@pytest.mark.parametrize(
    ("generation", "version", "schema"),
    [("2.9", "2022.2.1.31", "2.9.1"), ("3.0", "2022.4.2.1", "3.0.0"), ("3.13", "2024.5.1.113", "3.13.2")],
)
def test_versions(generation: str, version: str, schema: str, tmp_path: Path) -> None:
    facts = read_nsys(NsysFile(generation).write(tmp_path / "a.sqlite")).facts
    assert facts == {"tool": "NVIDIA Nsight Systems", "version": version, "schema": schema, "graphs": 0}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_instants_are_those_of_the_session_start_and_nothing_bounds_them_yet(generation: str, tmp_path: Path) -> None:
    file = NsysFile(generation)
    file.kernel("k", 5, 9)
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert timeline.start.tolist() == [EPOCH_NS + 5]
    assert timeline.alignment is not None
    assert (timeline.alignment.offset_ns, timeline.alignment.residual_ns) == (0, None)
    assert timeline.alignment.reason == "not bounded yet"


@pytest.mark.parametrize("generation", GENERATIONS)
def test_without_the_session_start_the_clock_is_the_file_s_own(generation: str, tmp_path: Path) -> None:
    file = NsysFile(generation, epoch_ns=None)
    file.kernel("k", 5, 9)
    timeline = read_nsys(file.write(tmp_path / "a.sqlite"))
    assert (timeline.start.tolist(), timeline.span, timeline.alignment) == ([5], (5, 9), None)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_devices_are_named_by_cuda_s_numbers(generation: str, tmp_path: Path) -> None:
    file = NsysFile(generation)
    file.gpu(0, "NVIDIA H200", row=3)
    file.gpu(3, "NVIDIA L4", row=0)
    assert read_nsys(file.write(tmp_path / "a.sqlite")).devices == {0: "NVIDIA H200", 3: "NVIDIA L4"}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_peak_memory_by_device(generation: str, tmp_path: Path) -> None:
    file = NsysFile(generation)
    file.memory(40, 1_000, free=True, address=1)
    file.memory(10, 1_000, address=1)
    file.memory(20, 500, address=2)
    file.memory(50, 700, address=3)
    file.memory(60, 9_000, address=4, kind=1)  # pinned, on the host
    file.memory(5, 0, address=77, free=True)  # allocated before the capture
    file.memory(30, 800, device=1, address=1, pid=9)
    facts = read_nsys(file.write(tmp_path / "a.sqlite")).facts
    assert facts["peak_memory_bytes"] == 1_500
    assert facts["peak_memory_by_device"] == {"0": 1_500, "1": 800}


@pytest.mark.parametrize("generation", SAID)
def test_warnings_are_notes_errors_first(generation: str, tmp_path: Path) -> None:
    file = NsysFile(generation)
    file.diagnostic("No NVTX events collected. Does the process use NVTX?")
    file.diagnostic("No OpenGL events collected. Does the process use OpenGL?")
    file.diagnostic("All is well.", severity=1)
    file.diagnostic("Not all CUPTI events:\n  42 dropped.", severity=1)
    file.diagnostic("CUDA profiling failed.", severity=3)
    assert read_nsys(file.write(tmp_path / "a.sqlite")).notes == (
        "nsys: CUDA profiling failed.",
        "nsys: No NVTX events collected. Does the process use NVTX?",
        "nsys: Not all CUPTI events: 42 dropped.",
    )


@pytest.mark.parametrize("generation", SAID)
def test_many_warnings_are_counted(generation: str, tmp_path: Path) -> None:
    file = NsysFile(generation)
    for number in range(25):
        file.diagnostic(f"warning {number}")
        file.diagnostic(f"warning {number}")
    notes = read_nsys(file.write(tmp_path / "a.sqlite")).notes
    assert len(notes) == 11
    assert notes[-1] == "nsys: 15 more messages"


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_device_of_several_processes_may_be_several_devices(generation: str, tmp_path: Path) -> None:
    file = NsysFile(generation)
    for pid, device in ((7, 0), (8, 0), (7, 1), (7, 1)):
        file.kernel("k", 5, 9, pid=pid, tid=pid, device=device, launch=(1, 2))
    notes = read_nsys(file.write(tmp_path / "a.sqlite")).notes
    assert [note.partition(":")[0] for note in notes] == ["processes 7, 8 all used a device 0"]
