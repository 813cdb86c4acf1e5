"""summary.json with everything that telemetry adds: it keeps to its schema, and comes out the same each time."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from servebench.analysis import summarize
from servebench.record.rundir import RunDir
from servebench.report.summary_io import encode
from servebench.testing.synthetic import MS, SECOND, START_NS, SyntheticRun, closed_run, open_run

SCHEMA = json.loads((resources.files("servebench.analysis") / "summary.schema.json").read_text())
SECTIONS = ("telemetry", "phases_joined", "interference", "server_side", "energy", "cold_start", "roofline")
MODEL = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "parameters": 8e9, "dtype": "bfloat16"}
LAUNCH = {"launch_ns": START_NS - 20 * SECOND, "ready_ns": START_NS - 4 * SECOND, "ready_s": 16.0}


def sampled(run: SyntheticRun) -> SyntheticRun:
    """The run with a GPU, a server's counters and a host beside it, and all of it in the manifest."""
    end = run.manifest["phases"]["end_ns"]
    for t in range(START_NS - SECOND, end + SECOND, 50 * MS):
        watts = 300.0 + (t // MS) % 100
        joules = (t - START_NS) / SECOND * 350 + 1e6
        for name, value in (("power_w", watts), ("energy_j", joules), ("util_gpu", 80.0), ("clock_sm_mhz", 1980.0)):
            run.samples.append(("nvml", "gpu-0", name, t, value))
    records = sorted(run.records, key=lambda r: r.end_ns or 0)
    for t in range(START_NS - SECOND, end + SECOND, 500 * MS):
        done = [r for r in records if (r.end_ns or end) <= t]
        figures = {
            "requests_success": len(done),
            "generation_tokens": sum(r.output_tokens or 0 for r in done),
            "prompt_tokens": sum(r.input_tokens or 0 for r in done),
            "prefix_queries": sum(r.input_tokens or 0 for r in done),
            "prefix_hits": 0,
            "queue_sum": 0.002 * len(done),
            "queue_count": len(done),
            "running": 8,
            "up": 1,
        }
        run.samples += [("server", "engine-0", name, t, float(value)) for name, value in figures.items()]
        run.samples.append(("host", "host", "cpu_busy_share", t, 0.5))
    device = {
        "index": 0,
        "uuid": "GPU-a",
        "name": "NVIDIA H200",
        "server_uses": True,
        "server_uses_reason": "a process",
    }
    nvml = {"state": "sampled", "reason": None, "asked_hz": 20.0, "devices": [device], "not_supported": []}
    server = {"state": "sampled", "reason": None, "missing": [], "renamed": [], "restarts": []}
    run.manifest["telemetry"] = {"cpu_share": 0.004, "sources": {"nvml": nvml, "server": server}}
    run.manifest["server_identity"] = {"model": MODEL}
    run.manifest["cold_start"] = LAUNCH
    run.manifest["prompts"]["leading_tokens"] = 21
    return run


RUNS = {
    "sampled": lambda: sampled(open_run(requests=400)),
    "closed": lambda: sampled(closed_run()),
    "bare": lambda: open_run(requests=200),
}


@pytest.mark.parametrize("kind", RUNS)
def test_every_section_keeps_to_the_schema(kind: str, run_path: Path) -> None:
    found = summarize(RUNS[kind]().write(run_path))
    jsonschema.validate(found, SCHEMA)
    assert set(SECTIONS) <= set(found)


def test_the_sections_are_filled_where_there_is_telemetry(run_path: Path) -> None:
    found = summarize(RUNS["sampled"]().write(run_path))
    assert {name: found[name]["reason"] for name in SECTIONS} == dict.fromkeys(SECTIONS)
    assert found["energy"]["valid"]
    assert found["energy"]["j_per_output_token"] > 0
    assert found["roofline"]["decode"]["floor_ms"] > 0
    assert [row["agrees"] for row in found["server_side"]["agreement"]] == [True] * 3
    assert {t["name"] for t in found["phases_joined"]["tables"]} == {
        "power_w", "util_gpu", "clock_sm_mhz", "running", "cpu_busy_share"
    }  # fmt: skip


def test_every_section_has_a_reason_where_there_is_none(run_path: Path) -> None:
    found = summarize(RUNS["bare"]().write(run_path))
    without = {name for name in SECTIONS if found[name]["reason"]}
    assert without == {"telemetry", "server_side", "energy", "cold_start", "roofline"}


def test_the_bytes_are_the_same_each_time_and_from_the_journal(run_path: Path) -> None:
    made = RUNS["sampled"]()
    made.manifest["status"] = "interrupted"
    run = made.write(run_path)
    before = encode(summarize(run))
    assert encode(summarize(RunDir.open(run_path))) == before
    run.finalise()
    assert encode(summarize(RunDir.open(run_path))) == before


def nulls_and_numbers(document: Any, path: str = "") -> dict[str, float | None]:
    """Every figure of a section by its path."""
    if isinstance(document, dict):
        return {k: v for key, part in document.items() for k, v in nulls_and_numbers(part, f"{path}.{key}").items()}
    return {path: document} if document is None or isinstance(document, int | float) else {}


def test_what_the_server_does_not_tell_is_null_and_never_zero(run_path: Path) -> None:
    found = summarize(RUNS["bare"]().write(run_path))
    figures = nulls_and_numbers({name: found["server_side"][name] for name in ("counters", "histograms", "steps")})
    assert set(figures.values()) == {None}
    figures = nulls_and_numbers(found["energy"])
    known = {key for key, value in figures.items() if value is not None}
    assert known == {".valid", ".window_ms", ".output_tokens", ".requests"}
