"""Two devices of a tensor-parallel server in exports of each generation of nsys's schema: every figure is the truth.

A step of device 0, in us after its begin. All of it is launched from −528 on, 820 us after the tail of the step before:

        0 …   100   copy to the device, on a stream of its own
                    50 us idle, although the replay was launched: beside a copy
      150 … 3 150   a graph's replay: attention; from 1 000 to 1 005 another stream's "hidden" is hidden behind it
                    2 us idle within the replay: a dependency
    3 152 … 6 152   the replay's mlp
    6 152 … 8 152   all-reduce
    7 152 … 8 652   tail, on another stream than the all-reduce
                    1 348 us idle: the host is late, and was in a synchronising call until 8 us after the tail

Device 1 does the same without a copy, and comes 30 us late to the all-reduce, which ends on both at once.
"""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from nsys_files import EPOCH_NS, GENERATIONS, NsysFile
from servebench.analysis.profile.devices import survey
from servebench.analysis.profile.skew import rank_skew
from servebench.profile.readers.nsys import read_nsys
from servebench.profile.timeline import Timeline

US = 1_000
STEP, STEPS = 10_000, 5
LATE = 30
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)"
PIDS = (4_242, 5_000)


def us(*instants: float) -> tuple[int, int]:
    start, end = (round(instant * US) for instant in instants)
    return start, end


def add_step(file: NsysFile, device: int, at: float) -> None:
    where: dict[str, Any] = {"device": device, "pid": PIDS[device], "tid": PIDS[device] + 8}
    late = LATE * device
    launched = at - 528
    if device == 0:
        file.copy("HtoD", *us(at, at + 100), size=1_000_000, stream=9, launch=us(launched, launched + 10), **where)
    nodes = [("attention", 150, 3_150), ("mlp", 3_152, 6_152)]
    graph = [(name, *us(at + start, at + end)) for name, start, end in nodes]
    file.graph_launch(us(launched + 20, launched + 60), graph, graph=3, **where)
    file.kernel("hidden", *us(at + 1_000, at + 1_005), stream=11, launch=us(launched + 70, launched + 75), **where)
    reduce = us(at + 6_152 + late, at + 8_152)
    file.kernel(ALL_REDUCE, *reduce, stream=12, launch=us(launched + 80, launched + 90), **where)
    file.kernel("tail", *us(at + 7_152, at + 8_652), launch=us(launched + 100, launched + 110), **where)
    wait = us(launched + 120, at + 8_660)
    file.api("cudaStreamSynchronize_v3020", *wait, pid=where["pid"], tid=where["tid"])
    file.sync(wait[0] + 5, wait[1] - 5, device=device, pid=where["pid"])


@pytest.fixture(scope="module", params=GENERATIONS)
def capture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    file = NsysFile(request.param)
    for device in (0, 1):
        file.gpu(device, f"NVIDIA H{device}00")
        for step in range(STEPS):
            add_step(file, device, 1_000 + STEP * step)
    return read_nsys(file.write(tmp_path_factory.mktemp("nsys") / "capture.sqlite"))


def window() -> tuple[int, int]:
    """From the start of the first step to that of the last one, which is left out."""
    start = EPOCH_NS + 1_000 * US
    return start, start + STEP * (STEPS - 1) * US


@pytest.fixture(scope="module")
def devices(capture: Timeline) -> list[dict[str, Any]]:
    found, doubts = survey(capture, *window(), None)
    assert doubts == []
    assert [(each["device"], each["name"]) for each in found] == [(0, "NVIDIA H000"), (1, "NVIDIA H100")]
    return found


def test_the_summary_schema_knows_them(capture: Timeline, devices: list[dict[str, Any]]) -> None:
    schema = json.loads(Path(str(files("servebench.analysis") / "summary.schema.json")).read_text(encoding="utf-8"))
    sections = {"profiled_device": devices, "profile_skew": [rank_skew(capture, *window())]}
    definitions = schema["$defs"] | {"profile_skew": schema["$defs"]["profile_window"]["properties"]["skew"]}
    for name, documents in sections.items():
        validator = Draft202012Validator({"$defs": definitions, "$ref": f"#/$defs/{name}"})
        for document in documents:
            validator.validate(document)


def test_busy(devices: list[dict[str, Any]]) -> None:
    n = STEPS - 1
    assert devices[0]["busy"] == {
        "ms": n * 8.6,
        "share": 0.86,
        "compute_ms": n * 7.5,
        "communication_ms": n * 2.0,
        "copy_ms": n * 0.1,
        "fill_ms": 0,
        "summed_ms": n * (0.1 + 6 + 0.005 + 2 + 1.5),
    }
    assert devices[1]["busy"]["ms"] == n * (8.5 - 0.03)


def test_gaps(devices: list[dict[str, Any]]) -> None:
    n = STEPS - 1
    causes = {row["cause"]: (row["n"], row["ms"]) for row in devices[0]["idle"]["causes"]}
    assert causes == {
        "host_late": (n, pytest.approx(n * 1.348)),
        "dependency": (n, pytest.approx(n * 0.002)),
        "copy_or_sync": (n, pytest.approx(n * 0.05)),
        "unknown": (0, 0),
    }
    # device 1 has no copy: its step begins 150 us later, and its collective 30 us after the mlp
    causes = {row["cause"]: (row["n"], row["ms"]) for row in devices[1]["idle"]["causes"]}
    assert causes == {
        "host_late": (n, pytest.approx((n - 1) * 1.498 + 1.348)),
        "dependency": (2 * n + 1, pytest.approx(n * 0.032 + 0.15)),
        "copy_or_sync": (0, 0),
        "unknown": (0, 0),
    }
    (late,) = (row for row in devices[0]["idle"]["causes"] if row["cause"] == "host_late")
    assert f"in {n} of them the host was still in a call that waits" in late["text"]
    longest = devices[0]["idle"]["longest"][0]
    assert longest == {"start_ms": 8.652, "ms": 1.348, "cause": "host_late"} | {
        "before": "tail",
        "after": "memcpy HtoD",
    }


def test_kernels(devices: list[dict[str, Any]]) -> None:
    n = STEPS - 1
    rows = {row["name"]: row for row in devices[0]["kernels"]}
    exposed = {"attention": 2.995, "mlp": 3.0, ALL_REDUCE: 1.0, "tail": 0.5, "hidden": 0}
    total = {"attention": 3.0, "mlp": 3.0, ALL_REDUCE: 2.0, "tail": 1.5, "hidden": 0.005}
    assert {name: row["exposed_ms"] for name, row in rows.items()} == {
        k: pytest.approx(n * v) for k, v in exposed.items()
    }
    assert {name: row["total_ms"] for name, row in rows.items()} == {k: pytest.approx(n * v) for k, v in total.items()}
    assert {row["n"] for row in rows.values()} == {n}
    assert rows["tail"]["exposed_share"] == pytest.approx(1 / 3, abs=1e-6)
    assert [rows["hidden"][key] for key in ("mean_us", "p50_us", "p99_us")] == [5, 5, 5]
    assert devices[0]["kernels_n"] == 5
    assert devices[0]["tiny"] == {"below_us": 10, "n": n, "share": 0.2, "ms": n * 0.005}


def test_launches(devices: list[dict[str, Any]]) -> None:
    n = STEPS - 1
    # four each of 528 (copy), 658 (the replay's first kernel), 1458 (hidden), 6600 (collective) and 7580 us (tail)
    found = devices[0]["launches"]
    assert found == {"n": 5 * n, "p50_us": 1_458, "p99_us": 7_580, "min_us": 518, "negative": 0}


def test_copies_and_communication(devices: list[dict[str, Any]]) -> None:
    n = STEPS - 1
    (row,) = devices[0]["copies"]
    assert row == {
        "direction": "host to device",
        "n": n,
        "bytes": n * 1_000_000,
        "ms": n * 0.1,
        "exposed_ms": n * 0.1,
        "overlapped_share": 0,
        "gb_per_s": 10,
    }
    assert devices[1]["copies"] == []
    for device, late in zip(devices, (0, 0.03), strict=True):
        found = device["communication"]
        assert (found["ms"], found["exposed_ms"]) == (pytest.approx(n * (2 - late)), pytest.approx(n * (1 - late)))
        assert found["hidden_share"] == pytest.approx(1 / (2 - late), abs=1e-6)
        assert [each["name"] for each in found["kernels"]] == [ALL_REDUCE]


def test_graphs(devices: list[dict[str, Any]]) -> None:
    n = STEPS - 1
    assert [each["graphs"] for each in devices] == [{"replays": n, "kernels_in_graphs": 2 * n}] * 2


def test_skew(capture: Timeline) -> None:
    assert rank_skew(capture, *window()) == {
        "collectives": STEPS - 1,
        "p50_us": LATE,
        "p99_us": LATE,
        "max_us": LATE,
        "last": {"device": 1, "share": 1},
    }


@pytest.mark.parametrize("generation", GENERATIONS)
def test_clocks_that_disagree_are_told_and_calls_that_return_late_are_not(generation: str, tmp_path: Path) -> None:
    file = NsysFile(generation)
    file.kernel("a", *us(100, 200), launch=us(90, 117))
    file.kernel("b", *us(300, 400), launch=us(302, 310))
    timeline = read_nsys(file.write(tmp_path / "capture.sqlite"))
    ((device,), (doubt,)) = survey(timeline, EPOCH_NS, EPOCH_NS + 500 * US, None)
    assert device["launches"] == {"n": 2, "p50_us": -2, "p99_us": 10, "min_us": -17, "negative": 2}
    assert "1 of 2 launches" in doubt
    assert "by up to 2.0 us" in doubt


@pytest.mark.parametrize("generation", GENERATIONS)
def test_whole_replays_are_busy_time(generation: str, tmp_path: Path) -> None:
    file = NsysFile(generation)
    file.whole_graph(*us(100, 400), graph=5, launch=us(10, 20))
    file.whole_graph(*us(500, 800), graph=5, launch=us(450, 460))
    timeline = read_nsys(file.write(tmp_path / "capture.sqlite"))
    ((device,), _) = survey(timeline, EPOCH_NS, EPOCH_NS + 1_000 * US, None)
    assert (device["busy"]["ms"], device["graphs"]) == (0.6, {"replays": 2, "kernels_in_graphs": 0})
    assert [(row["n"], row["exposed_ms"]) for row in device["kernels"]] == [(2, 0.6)]
    assert device["idle"]["causes"][0]["n"] == 1 + 1  # before the first, as its call was in the window, and between
