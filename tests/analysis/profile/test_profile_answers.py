"""The answers of a window as one document: every section from known truth, and nothing that costs a run its report."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handmade import Sent, handmade
from nsys_files import EPOCH_NS, NsysFile
from profile_timelines import Made, at, vllm
from servebench.analysis import summarize
from servebench.analysis.data import RunData
from servebench.analysis.profile.answers import NO_DEVICE, OTHER_CLOCK, answers
from servebench.analysis.profile.stored import answers_of, summary_of
from servebench.errors import UsageError
from servebench.profile.readers import open_file
from servebench.profile.stacks import Stacks
from servebench.profile.timeline import Alignment, Kind, Timeline
from servebench.record.rundir import RunDir
from servebench.report.summary_io import encode
from servebench.testing.synthetic import SyntheticRun, open_run

SCHEMA = json.loads((resources.files("servebench.analysis") / "summary.schema.json").read_text())
WINDOW_SCHEMA = {"$defs": SCHEMA["$defs"], "$ref": "#/$defs/profile_window"}
ALIGNED = Alignment("as made", residual_ns=1_000)
SPAN = at(-50), at(2000)


def decode_timeline(steps: int = 20) -> Timeline:
    """Steps of 10 ms, in each a gemm of 2 ms and 5 ms of attention, launched when the device was idle already."""
    made = Made()
    for k in range(steps):
        made.range(vllm(0, 0, 4), 10 * k, 10 * k + 9)
        made.kernel("gemm", 10 * k + 2, 10 * k + 4, launch=10 * k + 1)
        made.kernel("attention", 10 * k + 4, 10 * k + 9, launch=10 * k + 1.5)
        made.operator("aten::mm", 10 * k + 0.5, 10 * k + 1.2)
    made.add(Kind.SYSTEM, "poll", 0, 100, thread=9)
    facts = {"peak_memory_bytes": 123}
    return made.timeline(span=SPAN, alignment=ALIGNED, devices={0: "H200"}, facts=facts, notes=("a note",))


def decode_run(first: float = -5, last: float = 205, requests: int = 4) -> SyntheticRun:
    """Requests with a token every 10 ms."""
    count = round((last - first) / 10) + 1
    chunks = [first + 10 * k for k in range(count)]
    return handmade([Sent(first - 1, chunks=chunks) for _ in range(requests)], (0, 1000))


def answered(timeline: Timeline | None, run: RunData | None = None, **more: Any) -> dict[str, Any]:
    given = {"name": "decode", "kind": "decode", "tool": "nsys", "version": "1", "start_ns": at(0), "end_ns": at(195)}
    found = answers(timeline, run=run, **given | more)
    jsonschema.validate(found, WINDOW_SCHEMA)
    json.dumps(found, allow_nan=False)
    return found


def test_a_decode_window_in_every_section() -> None:
    found = answered(decode_timeline(), decode_run().data())
    assert (found["empty"], found["reason"], found["source"]) == (False, None, "torch")
    assert found["window"] == {"start_ns": at(0), "end_ns": at(195), "ms": 195}
    assert found["alignment"] == {"method": "as made", "offset_us": 0, "residual_us": 1, "reason": None}
    assert found["traffic"]["shares"]["decode_only"] == 1
    assert found["traffic"]["as_meant"] is True
    steps = found["steps"]
    assert (steps["n"], steps["truncated"], steps["work_by"]) == (19, 1, "launch")
    (row,) = steps["kinds"]
    assert [row[key] for key in ("p50", "busy_p50", "idle_p50")] == [9, 7, 3]
    assert row["period"]["p50"] == 10
    (device,) = found["devices"]
    assert device["name"] == "H200"
    assert {each["cause"]: each["ms"] for each in device["idle"]["causes"]}["host_late"] == pytest.approx(2 + 19 * 3)
    assert found["counts"] == {
        "kernels": 40,
        "kernels_per_step": 2,
        "graph_replays": 0,
        "api_calls": 40,
        "peak_memory_bytes": 123,
    }
    assert found["operators"]["rows"][0]["name"] == "aten::mm"
    assert found["system"] == [{"name": "poll", "n": 1, "ms": 100}]
    assert found["notes"] == ["a note"]
    assert (found["no_device"], found["skew"], found["hot"], found["overhead"]) == (None, None, None, None)


def test_what_if_rows_match_hand_arithmetic() -> None:
    found = answered(decode_timeline(), decode_run().data())
    rows = {(row["what"], row["change"]): row for row in found["amdahl"]}
    # 19 whole steps of 10 ms (to 190 ms), gemm exposed for 2 ms of each: 20 %
    gemm = rows["gemm", "-30 %"]
    assert (gemm["share"], gemm["step_ratio"], gemm["step_ms"]) == (0.2, 0.94, [10, 9.4])
    assert gemm["tpot_ms"] == [10, 9.4]
    assert rows["attention", "2x"]["step_ms"] == [10, 7.5]


def test_findings_are_told_with_their_figures() -> None:
    found = {each["code"]: each for each in answered(decode_timeline(), decode_run().data())["findings"]}
    assert {"host_late", "hot_kernel"} <= found.keys()
    assert found["host_late"]["evidence"]["busy_ms"] == 7
    assert found["host_late"]["sentence"].startswith("Device 0: decode step 10 ms, device busy 7 ms, 3.")


def test_a_clock_of_its_own_is_not_joined() -> None:
    timeline = replace(decode_timeline(), alignment=None)
    found = answered(timeline, decode_run().data())
    assert (found["traffic"], found["alignment"]) == (None, None)
    assert OTHER_CLOCK in found["notes"]
    assert found["empty"] is False
    assert all(row["tpot_ms"] is None for row in found["amdahl"])


def test_without_a_run_there_is_no_traffic() -> None:
    found = answered(decode_timeline(), start_ns=None, end_ns=None, kind="free")
    assert (found["traffic"], found["window"]["start_ns"], found["window"]["end_ns"]) == (None, *SPAN)
    assert found["notes"] == ["a note"]


def test_a_cpu_server_says_that_there_is_no_device() -> None:
    made = Made()
    for k in range(20):
        made.range(vllm(0, 0, 4), 10 * k, 10 * k + 9)
        made.operator("aten::addmm", 10 * k, 10 * k + 6)
        made.operator("aten::copy_", 10 * k + 6, 10 * k + 8)
    found = answered(made.timeline(span=SPAN, alignment=ALIGNED), decode_run().data())
    assert (found["devices"], found["no_device"]) == ([], NO_DEVICE)
    assert set(found["counts"].values()) == {None}
    row = found["amdahl"][0]
    assert (row["what"], row["where"], row["share"]) == ("aten::addmm", "host", pytest.approx(0.6, abs=0.01))
    assert "hot_operator" in {each["code"] for each in found["findings"]}


@pytest.mark.parametrize(
    ("start", "end", "reason"),
    [
        (300, 400, "no request was in flight during the window"),
        (1500, 1600, "the capture holds nothing in the window"),
        (3000, 4000, "the window lies outside what was captured: are their clocks the same?"),
    ],
)
def test_empty_windows_say_why(start: float, end: float, reason: str) -> None:
    made = Made()
    made.range(vllm(0, 0, 4), 290, 1000)
    found = answered(
        made.timeline(span=SPAN, alignment=ALIGNED), decode_run().data(), start_ns=at(start), end_ns=at(end)
    )
    assert (found["empty"], found["reason"]) == (True, reason)


def test_nothing_at_all() -> None:
    found = answered(None)
    assert (found["empty"], found["reason"]) == (True, "nothing was captured")
    assert found["findings"] == []
    assert answered(Made().timeline())["empty"] is True


def test_stacks_alone_are_a_window() -> None:
    stacks = Stacks.read(_folded())
    facts = {"counters": {"cycles": None}, "notes": ["lost 3"], "flame_graph": "flame.svg", "files": ["flame.svg"]}
    found = answered(None, decode_run().data(), stacks=stacks, facts=facts, tool="perf")
    assert (found["empty"], found["hot"]["samples"], found["hot"]["flame_graph"]) == (False, 10, "flame.svg")
    assert found["traffic"]["as_meant"] is True
    assert found["hot"]["counters"] == {"cycles": None}
    assert (found["notes"], found["files"]) == (["lost 3"], ["flame.svg"])
    assert found["findings"] == []  # of ten samples nothing is made


def test_what_other_tools_hold_ready_is_passed_on() -> None:
    found = answered(None, facts={"sanitizer": {"errors": 0}})
    assert (found["empty"], found["sanitizer"], found["kernel_replay"]) == (False, {"errors": 0}, None)


def test_a_pattern_that_is_none_is_the_user_s_error() -> None:
    with pytest.raises(UsageError, match="no regular expression"):
        answered(decode_timeline(), pattern="(")


def test_overhead_is_told_against_the_plain_run() -> None:
    slow = [Sent(-20, chunks=[-10 + 12 * k for k in range(20)]) for _ in range(4)]
    plain = decode_run(100, 300).data()
    found = answered(decode_timeline(), handmade(slow, (0, 1000)).data(), plain=plain)["overhead"]
    first = found["rows"][0]
    assert [row["metric"] for row in found["rows"]] == ["itl p50", "itl p95"]
    assert (first["plain"], first["captured"], first["ratio"], first["reason"]) == (10, 12, 1.2, None)
    assert first["n"] == [80, 4 * 17]  # of the captured run only what arrived in the window, from 2 ms to 194
    assert found["text"].startswith("while captured, ITL p50 was 20 % longer: 12 ms against 10 ms")


def test_overhead_of_too_few_is_not_known() -> None:
    run = decode_run(5, 25, requests=1).data()
    found = answered(decode_timeline(), run, plain=run)["overhead"]
    assert [(row["ratio"], row["plain"]) for row in found["rows"]] == [(None, None)] * 2
    assert found["rows"][0]["reason"] == "3 samples are needed on either side: 2 without, 2 with the capture"
    assert found["text"].startswith("the cost of capturing is not known: 3 samples")


def test_overhead_of_a_changing_load_is_told_against_the_same_moment_of_it() -> None:
    """The plain run has a token every 10 ms until 200 ms after its beginning, and then one every 50 ms."""
    slowing = [*(10 * k for k in range(1, 20)), *(200 + 50 * k for k in range(10))]
    plain = handmade([Sent(0, chunks=slowing)], (0, 1000)).data()
    found = answered(decode_timeline(), decode_run(10, 400).data(), kind="mixed", plain=plain, same_moment=True)
    assert found["overhead"]["rows"][0]["plain"] == 10
    found = answered(decode_timeline(), decode_run(10, 400).data(), kind="mixed", plain=plain)
    assert found["overhead"]["rows"][1]["plain"] == 50


def test_overhead_of_a_prefill_window_is_of_first_tokens() -> None:
    plain = handmade([Sent(20 * k, chunks=[20 * k + 10]) for k in range(9)], (0, 1000)).data()
    slow = handmade([Sent(20 * k, chunks=[20 * k + 15]) for k in range(9)], (0, 1000)).data()
    found = answered(decode_timeline(), slow, plain=plain, kind="prefill")["overhead"]
    assert [(row["metric"], row["plain"], row["captured"], row["ratio"]) for row in found["rows"]] == [
        ("ttft p50", 10, 15, 1.5),
    ]


def test_a_load_that_was_slower_without_the_capture_tells_no_cost() -> None:
    plain = handmade([Sent(20 * k, chunks=[20 * k + 15]) for k in range(9)], (0, 1000)).data()
    quick = handmade([Sent(20 * k, chunks=[20 * k + 10]) for k in range(9)], (0, 1000)).data()
    text = answered(decode_timeline(), quick, plain=plain, kind="prefill")["overhead"]["text"]
    assert "not known: the same load was slower without it (TTFT (from sent) p50 15 ms against 10 ms)" in text


@pytest.mark.parametrize("generation", ["2.9", "3.0", "3.13"])
def test_an_nsys_export_with_an_open_step(generation: str, tmp_path: Path) -> None:
    file = NsysFile(generation)
    for k in range(6):
        t = 10_000_000 * k
        file.range(vllm(0, 0, 8), t, t + 9_000_000 if k < 5 else None)
        file.kernel("gemm", t + 2_000_000, t + 4_000_000, launch=(t + 1_000_000, t + 1_010_000))
    timeline = open_file(file.write(tmp_path / "capture.sqlite"))
    assert isinstance(timeline, Timeline)
    found = answered(timeline, start_ns=EPOCH_NS, end_ns=None)
    assert (found["steps"]["n"], found["steps"]["truncated"]) == (5, 1)
    gemm = found["amdahl"][1]
    assert (gemm["share"], gemm["step_ratio"], gemm["step_ms"]) == (0.2, 0.94, [10, 9.4])
    assert found["counts"]["kernels_per_step"] == 1


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Rows of every kind in any order, with launches that exist or do not."""
    made = Made()
    for _ in range(draw(st.integers(0, 25))):
        kind = draw(st.sampled_from(Kind))
        begin = draw(st.integers(-20, 260))
        name = draw(st.sampled_from([vllm(0, 0, 4), vllm(1, 99, 0), vllm(2, 50, 3), "gemm", "poll", "cudaMemcpyAsync"]))
        where = {"device": draw(st.integers(0, 2)), "stream": draw(st.integers(1, 2))} if kind < Kind.API else {}
        name = f"{kind.name} {name}" if where else name  # no kernel is called like a copy
        joined = {"process": draw(st.integers(1, 2)), "correlation": draw(st.integers(-1, 6))}
        made.add(kind, name, begin, begin + draw(st.integers(0, 90)), thread=draw(st.integers(1, 2)), **joined, **where)
    aligned = ALIGNED if draw(st.booleans()) else None
    return made.timeline(alignment=aligned, span=SPAN if draw(st.booleans()) else None)


RUN = decode_run().data()


@settings(max_examples=50)
@given(timelines(), st.sampled_from(["decode", "prefill", "mixed", "free"]), st.booleans())
def test_any_timeline_gives_a_document_that_keeps_to_the_schema(timeline: Timeline, kind: str, joined: bool) -> None:
    found = answered(timeline, RUN if joined else None, plain=RUN, kind=kind)
    for device in found["devices"]:
        assert device["busy"]["ms"] + device["idle"]["ms"] == pytest.approx(found["window"]["ms"], abs=1e-5)
    for row in found["amdahl"]:
        assert 0 < row["share"] <= 1
    assert sum(each["n"] for each in found["steps"]["kinds"]) == found["steps"]["n"]
    if found["traffic"] is not None:
        assert sum(found["traffic"]["shares"].values()) == pytest.approx(1, abs=1e-5)


# a run directory


def _folded() -> Path:
    return Path(__file__).parent / "two_stacks.folded"


def window_json(**more: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "name": "decode",
        "kind": "decode",
        "tool": "nsys",
        "version": "2024.5",
        "settings": {},
        "bounds": {"seconds": 5.0, "steps": None},
        "start_asked_ns": at(-1),
        "start_ns": at(0),
        "stop_asked_ns": at(195),
        "stop_ns": at(210),
        "reason": None,
        "facts": {"files": ["decode.sqlite"]},
    } | more


def window(run: Path, **more: Any) -> Path:
    """A window's folder beside a run, whole."""
    document = window_json(**more)
    folder = run / "profile" / document["name"]
    folder.mkdir(parents=True)
    (folder / "window.json").write_text(json.dumps(document))
    decode_timeline().write(folder / "timeline.parquet")
    decode_run().write(folder / "captured")
    decode_run(100, 300).write(folder / "plain")
    return folder


@pytest.fixture
def profiled(run_path: Path) -> RunDir:
    run = open_run(requests=60, warmup=0, cooldown=0).write(run_path)
    window(run.path)
    return run


def test_a_run_s_windows_are_in_its_summary(profiled: RunDir) -> None:
    window(profiled.path, name="at-1s-2s", kind="range", start_asked_ns=at(-500), plain=None)
    summary = summarize(profiled)
    jsonschema.validate(summary, SCHEMA)
    found = summary["profile"]
    assert (found["tool"], found["version"]) == ("nsys", "2024.5")
    assert [each["name"] for each in found["windows"]] == ["at-1s-2s", "decode"]  # as they were captured
    assert found["windows"][1]["overhead"]["rows"][0]["ratio"] == 1
    # the run itself is what the other is held against: a token every 10 ms as well
    assert found["windows"][0]["overhead"]["rows"][0]["plain"] == pytest.approx(10, abs=0.5)
    assert found["windows"][1]["files"] == ["decode.sqlite"]
    assert encode(summary) == encode(summarize(RunDir.open(profiled.path)))


def test_a_run_without_windows_has_none(run_path: Path) -> None:
    run = open_run(requests=20, warmup=0, cooldown=0).write(run_path)
    assert summarize(run)["profile"] is None
    (run.path / "profile").mkdir()
    assert summary_of(run.path) is None


def broken_window_json(folder: Path) -> None:
    (folder / "window.json").write_text("{")


def later_window_json(folder: Path) -> None:
    (folder / "window.json").write_text(json.dumps(window_json(schema=2)))


def broken_timeline(folder: Path) -> None:
    (folder / "timeline.parquet").write_bytes(b"PAR1 or not")


def foreign_timeline(folder: Path) -> None:
    shutil.copy(folder / "captured" / "requests.parquet", folder / "timeline.parquet")


def no_timeline(folder: Path) -> None:
    (folder / "timeline.parquet").unlink()


def never_started(folder: Path) -> None:
    no_timeline(folder)
    (folder / "window.json").write_text(
        json.dumps(window_json(start_ns=None, stop_asked_ns=None, stop_ns=None, reason="it was never armed"))
    )


def odd_values(folder: Path) -> None:
    (folder / "window.json").write_text(json.dumps(window_json(start_ns="soon", facts=[1])))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (broken_window_json, "window.json is damaged"),
        (later_window_json, "window.json is of another version"),
        (broken_timeline, "holds no timeline"),
        (foreign_timeline, "holds no timeline"),
        (no_timeline, "nothing was captured"),
        (never_started, "it was never armed"),
        (odd_values, "the window's files are damaged"),
    ],
)
def test_damage_makes_a_window_empty_and_the_report_goes_on(profiled: RunDir, damage: Any, reason: str) -> None:
    damage(profiled.path / "profile" / "decode")
    summary = summarize(profiled)
    jsonschema.validate(summary, SCHEMA)
    (found,) = summary["profile"]["windows"]
    assert found["empty"] is True
    assert reason in found["reason"]
    assert str(profiled.path) not in found["reason"]


def broken_run(folder: Path, name: str) -> None:
    (folder / name / "run.json").write_text("{")


def test_a_damaged_captured_run_costs_the_traffic_only(profiled: RunDir) -> None:
    broken_run(profiled.path / "profile" / "decode", "captured")
    (found,) = summarize(profiled)["profile"]["windows"]
    assert (found["empty"], found["traffic"]) == (False, None)
    assert any("captured cannot be read" in note for note in found["notes"])


def test_a_damaged_plain_run_costs_the_overhead_only(profiled: RunDir) -> None:
    broken_run(profiled.path / "profile" / "decode", "plain")
    found = answers_of(profiled.path / "profile" / "decode")
    assert found["traffic"]["as_meant"] is True
    assert found["overhead"]["rows"] == []
    assert any("plain cannot be read" in note for note in found["notes"])


def test_a_reason_beside_a_capture_that_can_be_read_is_a_note(profiled: RunDir) -> None:
    folder = profiled.path / "profile" / "decode"
    (folder / "window.json").write_text(json.dumps(window_json(reason="the stop took 900 s")))
    found = answers_of(folder)
    assert found["empty"] is False
    assert "the stop took 900 s" in found["notes"]
