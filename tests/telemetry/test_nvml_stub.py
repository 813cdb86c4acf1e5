"""The stub itself: a test double that is wrong would make every other test here wrong."""

import shutil

import pynvml
import pytest

from servebench.telemetry.nvml_library import close_library, open_library
from servebench.telemetry.source import SourceAbsent
from servebench.testing.nvml_stub import (
    SOURCES,
    StubClock,
    StubGpu,
    StubMachine,
    build,
    install,
    integral,
)
from servebench.testing.nvml_stub import __file__ as package


@pytest.fixture
def nvml(tmp_path):
    """Opens a machine; gives the clock and the handles."""
    opened = []

    def start(*gpus):
        library = install(StubMachine(gpus=gpus), tmp_path)
        open_library(library)
        opened.append(library)
        return StubClock(library).set(0), [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(len(gpus))]

    yield start
    if opened:
        close_library()


def test_it_compiles_without_a_warning(tmp_path):
    assert build(tmp_path, "-Wall", "-Wextra", "-Werror").exists()


def test_a_machine_without_a_compiler_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="needs a C compiler"):
        build(tmp_path)


def test_a_source_that_does_not_compile_is_told(tmp_path):
    with pytest.raises(RuntimeError, match="does not compile"):
        build(tmp_path, "-Dinitialised=1")


def test_the_package_has_all_sources():
    folder = build.__globals__["_HERE"]
    assert {path.name for path in folder.glob("*.c")} == set(SOURCES)
    assert package.startswith(str(folder))


@pytest.mark.parametrize(
    "line",
    [
        "0 line temp_fan",  # without points
        "0 line temp_fan 0:1 0:2",  # not in order
        "0 line temp_fan 0-1",
        "0 line temp_gpu 0:1",  # known already
        "0 hold no_such 1",
        "0 error power_instant 3 5 4",  # ends before it begins
        "0 process 1 2",
        "0 fly 3",
        "2 line util_gpu 0:1",  # there is no 1
        "x line util_gpu 0:1",
        "cuda many",
    ],
)
def test_a_wrong_line_stops_the_library(tmp_path, capfd, line):
    library = install(StubMachine(), tmp_path)
    script = library.with_name(f"{library.name}.script")
    good = script.read_text()
    script.write_text(f"{good}{line}\n")
    with pytest.raises(SourceAbsent, match="Unknown Error"):
        open_library(library)
    assert f"line {len(good.splitlines()) + 1} of the script is wrong" in capfd.readouterr().err


def test_a_script_that_is_not_there_stops_the_library(tmp_path, capfd):
    library = install(StubMachine(), tmp_path)
    library.with_name(f"{library.name}.script").unlink()
    with pytest.raises(SourceAbsent):
        open_library(library)
    assert "No such file" in capfd.readouterr().err


def test_comments_and_empty_lines_are_nothing(tmp_path):
    library = install(StubMachine(), tmp_path)
    script = library.with_name(f"{library.name}.script")
    script.write_text(f"# nothing\n\n{script.read_text()}")
    open_library(library)
    close_library()


def test_time_starts_at_init_and_goes_on_by_itself(tmp_path):
    library = install(StubMachine(), tmp_path)
    clock = StubClock(library)
    open_library(library)
    first = clock()
    second = clock()
    close_library()
    assert 0 <= first < second < 5


def test_a_stall_passes_at_once_where_the_clock_is_stopped(nvml):
    clock, (gpu,) = nvml(StubGpu(stalls=((1, 3),)))
    clock.set(1.5)
    assert pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) == 1980
    assert clock() == 3


def test_nothing_is_answered_before_init_or_after_shutdown(nvml):
    _, (gpu,) = nvml(StubGpu())
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetUtilizationRates(gpu)
    pynvml.nvmlInit()


def test_what_is_not_in_the_script_is_not_supported(nvml):
    clock, (gpu,) = nvml(StubGpu())
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetFanSpeed(gpu)
    assert clock.asked(0, "no such key") == 0


def test_pairs_of_gpm_samples_that_are_too_close_are_refused(nvml):
    clock, (gpu,) = nvml(StubGpu())
    request = pynvml.c_nvmlGpmMetricsGet_t(version=pynvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=1)
    request.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
    samples = []
    for second in (0, 0.09, 0.1):
        clock.set(second)
        samples.append(pynvml.nvmlGpmSampleGet(gpu, pynvml.nvmlGpmSampleAlloc()))
    request.sample1, request.sample2 = samples[0], samples[1]
    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlGpmMetricsGet(request)
    request.sample2 = samples[2]
    assert pynvml.nvmlGpmMetricsGet(request).metrics[0].value == 0
    for sample in samples:
        pynvml.nvmlGpmSampleFree(sample)


@pytest.mark.parametrize("until", [0.0, 0.5, 1.0, 2.5, 4.0, 9.0])
def test_both_integrals_agree(nvml, until):
    points = ((1.0, 10_000.0), (2.0, 50_000.0), (4.0, 20_000.0))
    clock, (gpu,) = nvml(StubGpu(values={"power_instant": points, "energy_base": 0}))
    clock.set(until)
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) == pytest.approx(integral(points, until), abs=1)


def test_the_integral_by_hand():
    points = ((1.0, 10.0), (2.0, 50.0), (4.0, 20.0))
    assert integral(points, 1.0) == 10
    assert integral(points, 1.5) == 10 + (10 + 30) / 2 * 0.5
    assert integral(points, 5.0) == 10 + 30 + 70 + 20
