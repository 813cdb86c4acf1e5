"""One capture whose every figure is known, through sqlite of each schema generation to the document of answers.

Two devices of a tensor-parallel server. A step takes 10 ms; what one does on device 0, in us after its begin (launch):

        200 …   300   copy to the device (0)               alone; the device was idle, as the launch came late
                      50 us idle beside the copy: the graph was launched before (20)
        350 … 3 350   graph: attention (20)                hides all of the next three but for a part of itself
      1 000 … 1 005   hidden (70), on another stream
      1 500 … 1 600   copy to the host (74)
      2 000 … 2 004   fill (76)
                      2 us idle within the graph: a dependency
      3 352 … 5 352   graph: mlp                           and twin (80) on another stream: neither is ever alone
      5 352 … 7 352   hot (84)                             20 % of the step
      7 352 … 8 352   all-reduce (100)                     alone until tail begins
      7 852 … 8 452   tail (112)
      8 400 … 8 420   early (8 402 … 8 410)                before its own launch; hides 20 us of tail
                      1 748 us idle until the next step's copy, launched at its begin: the host is late

Device 1 does attention, mlp, hot, all-reduce and tail alike, and comes to the all-reduce 30 us later. There are five
whole steps (prefill, mixed, and three of decode) and one that the end of the capture cuts within its attention.
The client has two requests in flight, but for 1.5 ms of the last pause.
"""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from handmade import Sent, handmade
from nsys_files import GENERATIONS, NsysFile
from servebench.analysis.profile.answers import answers
from servebench.profile.readers import open_file
from servebench.profile.timeline import Timeline
from servebench.testing.synthetic import START_NS

US = 1_000
BEGIN, STEP, STEPS = 1_000, 10_000, 5
LAST = BEGIN + STEP * STEPS  # begin of the step that is cut
END = LAST + 3_350
PIDS = (4_242, 4_194_303)  # the largest that Linux gives
HOT = "void hot<__nv_bfloat16, 128>(float*)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)"
NAMES = [
    ("execute_context_1(512)_generation_0(0)", 9_500),
    ("execute_context_1(64)_generation_7(7)", 9_200),
    *[("execute_context_0(0)_generation_8(8)", 9_000)] * 4,
]


def us(at: int, start: int, end: int) -> tuple[int, int]:
    return (at + start) * US, (at + end) * US


def add_step(file: NsysFile, number: int, device: int) -> None:
    at, whole = BEGIN + STEP * number, number < STEPS
    where: dict[str, Any] = {"device": device, "pid": PIDS[device], "tid": PIDS[device] + 8}
    name, length = NAMES[number]
    begin, end = us(at, 0, length)
    file.range(name, begin, end if whole else None, pid=where["pid"], tid=where["tid"])
    if device == 0:
        file.copy("HtoD", *us(at, 200, 300), size=1_000_000, stream=9, launch=us(at, 0, 10), **where)
        file.kernel("hidden", *us(at, 1_000, 1_005), stream=11, launch=us(at, 70, 72), **where)
        file.copy("DtoH", *us(at, 1_500, 1_600), size=1_000, stream=9, launch=us(at, 74, 75), **where)
        file.fill(*us(at, 2_000, 2_004), stream=11, launch=us(at, 76, 78), **where)
    nodes = [("attention", *us(at, 350, 3_350)), ("mlp", *us(at, 3_352, 5_352))]
    file.graph_launch(us(at, 20, 60), nodes if whole else nodes[:1], graph=3, **where)
    if whole:
        add_rest(file, at, where)


def add_rest(file: NsysFile, at: int, where: dict[str, Any]) -> None:
    device, host = where["device"], {"pid": where["pid"], "tid": where["tid"]}
    if device == 0:
        file.kernel("twin", *us(at, 3_352, 5_352), stream=11, launch=us(at, 80, 82), **where)
        file.kernel("early", *us(at, 8_400, 8_420), stream=11, launch=us(at, 8_402, 8_410), **where)
    file.kernel(HOT, *us(at, 5_352, 7_352), launch=us(at, 84, 90), **where)
    file.kernel(ALL_REDUCE, *us(at, 7_352 + 30 * device, 8_352), stream=12, launch=us(at, 100, 110), **where)
    file.kernel("tail", *us(at, 7_852, 8_452), launch=us(at, 112, 120), **where)
    file.api("cudaStreamSynchronize_v3020", *us(at, 400, 8_460), **host)


def captured(generation: str, path: Path) -> Timeline:
    file = NsysFile(generation, epoch_ns=START_NS)
    for device in (0, 1):
        file.gpu(device, f"NVIDIA H{device}00", row=1 - device)
        for number in range(STEPS + 1):
            add_step(file, number, device)
    for at, size, free, address in ((2_000, 700, False, 1), (3_000, 500, False, 2), (4_000, 0, True, 1)):
        file.memory(at, size, free=free, address=address)
    file.system("epoll_wait", *us(BEGIN, -500, 250))
    timeline = open_file(file.write(path / "capture.sqlite"))
    assert isinstance(timeline, Timeline)
    return timeline


@pytest.fixture(scope="module", params=GENERATIONS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    timeline = captured(request.param, tmp_path_factory.mktemp("truth"))
    early = Sent(0.5, chunks=[9.5, 19.5, 29.5, 39.5, 49.5])
    run = handmade([early, early, Sent(51.0, chunks=[61.0]), Sent(51.0, chunks=[61.0])], (0, 100))
    names = {"name": "w", "kind": "mixed", "tool": "nsys", "version": "1"}
    document = answers(timeline, **names, start_ns=START_NS + BEGIN * US, end_ns=None, run=run.data())
    schema = json.loads((files("servebench.analysis") / "summary.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator({"$defs": schema["$defs"], "$ref": "#/$defs/profile_window"}).validate(document)
    return document


def rows_of(rows: list[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in keys) for row in rows]


def test_window_and_traffic(found: dict[str, Any]) -> None:
    assert found["window"] == {"start_ns": START_NS + BEGIN * US, "end_ns": START_NS + END * US, "ms": 53.35}
    assert (found["empty"], found["no_device"], found["operators"], found["hot"]) == (False, None, None, None)
    shares = {"idle": 1.5, "prefill_only": 8.5 + 3.35, "decode_only": 40, "mixed": 0}
    assert found["traffic"] == {
        "shares": {name: round(ms / 53.35, 6) for name, ms in shares.items()},
        "in_flight": {"mean": round(2 * (53.35 - 1.5) / 53.35, 6), "max": 2},
        "requests": 4,
        "as_meant": True,
        "reason": None,
    }
    assert found["system"] == [{"name": "epoll_wait", "n": 1, "ms": 0.25}]
    assert found["notes"] == [
        "2 NVTX ranges were still open when the capture ended, and are taken to end there",
        "device 0: 5 of 55 launches begin on the device before the call that launched them, by up to 2.0 us: the "
        "clocks of device and host are that far apart",
    ]


def test_busy(found: dict[str, Any]) -> None:
    both = {"compute_ms": 5 * 7.6 + 3, "fill_ms": 0.024}
    alone = 0.1 + 3 + 0.005 + 0.1 + 0.004  # until the cut
    assert rows_of(found["devices"], "device", "name") == [(0, "NVIDIA H000"), (1, "NVIDIA H100")]
    assert [device["busy"] for device in found["devices"]] == [
        both
        | {"ms": 5 * 8.2 + 3.1, "share": round(44.1 / 53.35, 6), "communication_ms": 5, "copy_ms": 1.2}
        | {"summed_ms": pytest.approx(5 * (alone + 2 * 2 + 2 + 1 + 0.6 + 0.02) + alone)},
        both
        | {"ms": 5 * 8.07 + 3, "share": round(43.35 / 53.35, 6), "communication_ms": 4.85, "copy_ms": 0, "fill_ms": 0}
        | {"summed_ms": 5 * 8.57 + 3},
    ]


def test_idle(found: dict[str, Any]) -> None:
    keys = ("cause", "n", "ms", "short_n", "short_ms")
    first, second = (device["idle"] for device in found["devices"])
    assert [(idle["ms"], idle["share"]) for idle in (first, second)] == [
        (9.25, round(9.25 / 53.35, 6)),
        (10, round(10 / 53.35, 6)),
    ]
    # before the first step, and four of the five pauses; in the fifth the client had no request
    assert sorted(rows_of(first["causes"], *keys)) == [
        ("copy_or_sync", 6, 0.3, 0, 0),
        ("dependency", 5, 0.01, 5, 0.01),
        ("host_late", 5, 7.192, 0, 0),  # 0.2 + 4 · 1.748
        ("no_request", 1, 1.748, 0, 0),
        ("unknown", 0, 0, 0, 0),
    ]
    assert sorted(rows_of(second["causes"], *keys)) == [
        ("copy_or_sync", 0, 0, 0, 0),
        ("dependency", 10, 5 * (0.002 + 0.03), 5, 0.01),
        ("host_late", 5, 7.942, 0, 0),  # 0.35 + 4 · 1.898
        ("no_request", 1, 1.898, 0, 0),
        ("unknown", 0, 0, 0, 0),
    ]
    sizes = [(0, 10, 5, 0.01), (10, 100, 6, 0.3), (100, 1_000, 1, 0.2), (1_000, 10_000, 5, 8.74)]
    assert rows_of(first["sizes"], "from_us", "to_us", "n", "ms")[:4] == sizes
    assert all(row["n"] == row["ms"] == 0 for row in first["sizes"][4:])
    pauses = [(at, 1.748, "host_late", "tail", "memcpy HtoD") for at in (8.452, 18.452, 28.452, 38.452)]
    longest = rows_of(first["longest"], "start_ms", "ms", "cause", "before", "after")
    assert longest[:4] == pauses
    assert longest[4:6] == [
        (48.452, 1.748, "no_request", "tail", "memcpy HtoD"),
        (0, 0.2, "host_late", None, "memcpy HtoD"),
    ]


def test_kernels_by_exposed_time(found: dict[str, Any]) -> None:
    keys = ("name", "n", "total_ms", "exposed_ms", "exposed_share", "mean_us", "p50_us", "p99_us")
    first, second = (rows_of(device["kernels"], *keys) for device in found["devices"])
    assert sorted(first) == sorted(
        [
            ("attention", 6, 18, 6 * 2.891, round(2.891 / 3, 6), 3_000, 3_000, 3_000),
            (HOT, 5, 10, 10, 1, 2_000, 2_000, 2_000),
            (ALL_REDUCE, 5, 5, 2.5, 0.5, 1_000, 1_000, 1_000),
            ("tail", 5, 3, 0.4, round(0.08 / 0.6, 6), 600, 600, 600),
            ("mlp", 5, 10, 0, 0, 2_000, 2_000, 2_000),
            ("twin", 5, 10, 0, 0, 2_000, 2_000, 2_000),
            ("early", 5, 0.1, 0, 0, 20, 20, 20),
            ("hidden", 6, 0.03, 0, 0, 5, 5, 5),
        ]
    )
    assert sorted(second) == sorted(
        [
            ("attention", 6, 18, 18, 1, 3_000, 3_000, 3_000),
            (HOT, 5, 10, 10, 1, 2_000, 2_000, 2_000),
            ("mlp", 5, 10, 10, 1, 2_000, 2_000, 2_000),
            (ALL_REDUCE, 5, 4.85, 2.35, round(0.47 / 0.97, 6), 970, 970, 970),
            ("tail", 5, 3, 0.5, round(0.1 / 0.6, 6), 600, 600, 600),
        ]
    )
    for rows in (first, second):
        assert [row[3] for row in rows] == sorted((row[3] for row in rows), reverse=True)
    assert [device["kernels_n"] for device in found["devices"]] == [8, 5]
    assert [device["tiny"] for device in found["devices"]] == [
        {"below_us": 10, "n": 6, "share": round(6 / 42, 6), "ms": 0.03},
        {"below_us": 10, "n": 0, "share": 0, "ms": 0},
    ]


def test_launches(found: dict[str, Any]) -> None:
    # device 0, in us: five of −2, 3 272, 5 268, 7 252 and 7 740 each, and six of 200, 330, 930, 1 426 and 1 924
    # device 1: six of 330, and five of 5 268, 7 282 and 7 740 each
    assert [device["launches"] for device in found["devices"]] == [
        {"n": 55, "p50_us": 1_426, "p99_us": 7_740, "min_us": -10, "negative": 5},
        {"n": 21, "p50_us": 5_268, "p99_us": 7_740, "min_us": 290, "negative": 0},
    ]


def test_copies_communication_and_graphs(found: dict[str, Any]) -> None:
    first, second = found["devices"]
    keys = ("direction", "n", "bytes", "ms", "exposed_ms", "overlapped_share", "gb_per_s")
    assert rows_of(first["copies"], *keys) == [
        ("host to device", 6, 6_000_000, 0.6, 0.6, 0, 10),
        ("device to host", 6, 6_000, 0.6, 0, 1, 0.01),
    ]
    assert second["copies"] == []
    collectives = [device["communication"] for device in (first, second)]
    wanted = [(5, 2.5, 0.5), (4.85, 2.35, round(2.5 / 4.85, 6))]
    assert rows_of(collectives, "ms", "exposed_ms", "hidden_share") == wanted
    for device in (first, second):
        assert device["communication"]["kernels"] == [row for row in device["kernels"] if row["name"] == ALL_REDUCE]
        assert device["graphs"] == {"replays": 6, "kernels_in_graphs": 11}


def test_skew(found: dict[str, Any]) -> None:
    spread = {"p50_us": 30, "p99_us": 30, "max_us": 30}
    assert found["skew"] == {"collectives": 5, **spread, "last": {"device": 1, "share": 1}}


def test_steps(found: dict[str, Any]) -> None:
    steps = found["steps"]
    assert [steps[key] for key in ("found_by", "reason", "n", "processes", "truncated")] == ["names", None, 10, 2, 2]
    assert steps["work_by"] == "launch"
    for row, (kind, n, length, tokens, requests) in zip(
        steps["kinds"],
        [("prefill_only", 2, 9.5, 512, 0), ("decode_only", 6, 9, 0, 8), ("mixed", 2, 9.2, 64, 7)],
        strict=True,
    ):
        assert row == {
            "kind": kind,
            "n": n,
            **dict.fromkeys(("mean", "p50", "p95", "max"), length),
            "period": {"n": n, **dict.fromkeys(("mean", "p50", "p95", "max"), 10)},
            "busy_p50": 8.07,  # by nearest rank the lower of device 1's 8.07 and device 0's 8.2
            "idle_p50": 1.8,
            "context_tokens_mean": tokens,
            "generation_requests_mean": requests,
        }


def test_what_a_faster_kernel_is_worth(found: dict[str, Any]) -> None:
    # exposed time of both devices in five steps of each, 100 ms in all; mlp is exposed on device 1 only
    shares = {"attention": 0.29455, HOT: 0.2, "mlp": 0.1, ALL_REDUCE: 0.0485, "tail": 0.009}
    wanted = []
    for name, share in shares.items():
        for change, factor in (("2x", 0.5), ("-30 %", 0.7)):
            after = 1 - share * (1 - factor)
            wanted.append((name, "device", share, change, factor, round(after, 6), [10, round(10 * after, 6)]))
    keys = ("what", "where", "share", "change", "factor", "step_ratio", "step_ms")
    assert rows_of(found["amdahl"], *keys) == wanted
    assert all(row["tpot_ms"] == row["step_ms"] for row in found["amdahl"])  # a token every 10 ms
    hot = next(row for row in found["amdahl"] if row["what"] == HOT and row["factor"] == 0.7)
    assert (hot["step_ratio"], hot["step_ms"]) == (0.94, [10, 9.4])


def test_counts(found: dict[str, Any]) -> None:
    assert found["counts"] == {
        "kernels": 42 + 26,
        "kernels_per_step": (8 + 5) / 2,
        "graph_replays": 12,
        "api_calls": 55 + 5 + 21 + 5,
        "peak_memory_bytes": 1_200,
    }
