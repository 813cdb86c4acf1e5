"""`gpu.*`: for each code a GPU that raises it, and one that does not; utilisation alone raises nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from servebench.analysis.facts import gather
from servebench.analysis.verdict import Code, Level, judge
from servebench.testing.synthetic import SECOND, START_NS, SyntheticRun, open_run

Change = Callable[[SyntheticRun], object]
Values = Callable[[float], float | None]
CODES = {"gpu.throttled", "gpu.clock_moved", "gpu.foreign_process", "gpu.ecc", "gpu.lost", "gpu.xid"}
HEALTHY: dict[str, float] = {
    "power_w": 400,
    "util_gpu": 100,
    "clock_sm_mhz": 1980,
    "clock_reasons": 0,
    "processes": 1,
    "foreign_processes": 0,
    "ecc_uncorrected": 0,
    "ecc_corrected": 7,
    "remapped_rows": 1,
    "xid": 0,
}


def set_series(run: SyntheticRun, device: str, name: str, values: Values) -> None:
    """Sample `values` (of seconds of the load) at 10 Hz."""
    run.samples = [s for s in run.samples if s[:3] != ("nvml", device, name)]
    last = max(record.end_ns or 0 for record in run.records)
    instants = range(START_NS - SECOND, last + SECOND, SECOND // 10)
    run.samples += [("nvml", device, name, t, values((t - START_NS) / SECOND)) for t in instants]


def add_gpu(run: SyntheticRun, index: int, uses: bool | None) -> None:
    facts = {"index": index, "uuid": f"GPU-{index}", "name": "H200", "server_uses": uses, "lost": None, "xids": []}
    run.manifest["telemetry"]["sources"]["nvml"]["devices"].append(facts)
    for name, value in HEALTHY.items():
        set_series(run, f"gpu-{index}", name, lambda _, value=value: float(value))


def healthy(*uses: bool | None) -> SyntheticRun:
    """A run on as many GPUs, which the server uses or not."""
    run = open_run()
    nvml = {"state": "sampled", "asked_hz": 10.0, "failures": {}, "devices": []}
    run.manifest["telemetry"] = {"sources": {"nvml": nvml}, "cpu_share": 0.01}
    for index, used in enumerate(uses or (True,)):
        add_gpu(run, index, used)
    return run


def codes_of(run: SyntheticRun) -> dict[str, Code]:
    return {code.code: code for code in judge(gather(run.data()))}


def series(name: str, values: Values, device: str = "gpu-0") -> Change:
    return lambda run: set_series(run, device, name, values)


def device(index: int = 0, **facts: Any) -> Change:
    return lambda run: run.manifest["telemetry"]["sources"]["nvml"]["devices"][index].update(facts)


def gone(*names: str) -> Change:
    """The device refuses these."""

    def change(run: SyntheticRun) -> None:
        run.samples = [s for s in run.samples if not (s[0] == "nvml" and s[2] in names)]

    return change


def reasons(mask: int, share: float = 1.0) -> Change:
    """These bits in `share` of each second."""
    return series("clock_reasons", lambda s: float(mask) if s % 1 < share - 1e-9 else 0.0)


CASES: list[tuple[str, str, Change]] = [
    ("gpu.throttled", "ok", reasons(0x1)),  # idle
    ("gpu.throttled", "ok", reasons(0x2)),  # application clocks
    ("gpu.throttled", "ok", reasons(0x4)),  # at the power limit
    ("gpu.throttled", "ok", reasons(0x10 | 0x100)),
    ("gpu.throttled", "ok", reasons(0x800)),  # newer than our table
    ("gpu.throttled", "ok", gone("clock_reasons")),
    ("gpu.throttled", "warn", series("clock_reasons", lambda s: 0x20 if 10 <= s < 10.15 else 0)),
    *[("gpu.throttled", "fail", reasons(bit, 0.3)) for bit in (0x8, 0x20, 0x40, 0x80, 0x200, 0x400)],
    ("gpu.clock_moved", "warn", series("clock_sm_mhz", lambda s: 1980 - 15 * s)),
    ("gpu.clock_moved", "ok", series("clock_sm_mhz", lambda s: 1980 - s)),
    ("gpu.clock_moved", "ok", gone("clock_sm_mhz")),
    ("gpu.foreign_process", "warn", series("foreign_processes", lambda s: 1.0 if 12 < s < 14 else 0.0)),
    ("gpu.foreign_process", "ok", series("foreign_processes", lambda s: 1.0 if s < 0 else 0.0)),
    ("gpu.foreign_process", "ok", gone("foreign_processes")),
    ("gpu.ecc", "fail", series("ecc_uncorrected", lambda s: float(s > 15))),
    ("gpu.ecc", "warn", series("ecc_corrected", lambda s: 7.0 + (s > 15))),
    ("gpu.ecc", "warn", series("remapped_rows", lambda s: 1.0 + (s > 15))),
    ("gpu.ecc", "ok", gone("ecc_corrected", "ecc_uncorrected")),
    ("gpu.lost", "fail", device(lost={"t_ns": START_NS, "reason": "GPU is lost"})),
    ("gpu.xid", "fail", device(xids=[{"t_ns": START_NS, "xid": 79}])),
    ("gpu.xid", "warn", device(xids=[{"t_ns": START_NS, "xid": 31}])),
    ("gpu.xid", "warn", series("xid", lambda s: 31.0 if s > 10 else 0.0)),
    ("gpu.xid", "ok", gone("xid")),
]


@pytest.mark.parametrize(("name", "level", "change"), CASES, ids=[f"{c[0]}-{c[1]}-{i}" for i, c in enumerate(CASES)])
def test_code(name: str, level: str, change: Change) -> None:
    run = healthy()
    change(run)
    code = codes_of(run)[name]
    assert code.level == level, code
    assert bool(code.next) == (level != "ok")
    assert code.value is None or code.limit is not None


def test_a_healthy_gpu_raises_none() -> None:
    codes = codes_of(healthy())
    assert codes.keys() >= CODES
    assert [code for code in codes.values() if code.level is not Level.OK] == []


def test_every_code_has_a_case_that_raises_it() -> None:
    assert {name for name, level, _ in CASES if level != "ok"} == CODES


def test_without_a_gpu_nothing_is_claimed() -> None:
    assert not codes_of(open_run()).keys() & CODES


@pytest.mark.parametrize("percent", [0.0, 3.0, 100.0])
def test_utilisation_alone_drives_nothing(percent: float) -> None:
    run = healthy()
    series("util_gpu", lambda _: percent)(run)
    assert all(code.level is Level.OK for code in codes_of(run).values())


def test_only_the_gpus_of_the_server_count() -> None:
    run = healthy(True, False)
    for name, value in (("clock_reasons", 0x40), ("foreign_processes", 3), ("ecc_uncorrected", 1)):
        series(name, lambda s, value=value: value * float(s > 8), "gpu-1")(run)
    device(1, xids=[{"t_ns": START_NS, "xid": 79}], lost={"t_ns": START_NS, "reason": "gone"})(run)
    codes = codes_of(run)
    assert all(codes[name].level is Level.OK for name in CODES)


def test_of_several_gpus_the_worst_is_named() -> None:
    run = healthy(True, True)
    series("clock_reasons", lambda s: 0x48 if s % 1 < 0.5 else 0x4, "gpu-1")(run)
    text = codes_of(run)["gpu.throttled"].text
    assert "gpu-1 was slowed down in 50" in text
    assert "HwSlowdown, HwThermalSlowdown" in text
    assert re.search(r"at its power limit in (49|50) %", text)


def test_a_reason_that_is_new_is_told_by_its_number() -> None:
    run = healthy()
    reasons(0x800)(run)
    assert "unknown reasons: 0x800" in codes_of(run)["gpu.throttled"].text


def test_a_slow_down_while_the_server_is_idle_does_not_count() -> None:
    run = open_run(requests=40, rate=1.0, tokens=5)
    run.manifest["telemetry"] = {"sources": {"nvml": {"state": "sampled", "asked_hz": 10.0, "devices": []}}}
    add_gpu(run, 0, True)
    spans = [(record.sent_ns or 0, record.last_token_ns or 0) for record in run.records]

    def idle(s: float) -> bool:
        t = START_NS + round(s * SECOND)
        return not any(begin - SECOND // 50 <= t <= end + SECOND // 50 for begin, end in spans)

    series("clock_reasons", lambda s: 0x40 if idle(s) else 0x0)(run)
    series("clock_sm_mhz", lambda s: 345.0 if idle(s) else 1980.0)(run)
    codes = codes_of(run)
    assert codes["gpu.throttled"].value == 0
    assert codes["gpu.clock_moved"].level is Level.OK


def test_a_gpu_that_was_lost_from_the_start_is_told() -> None:
    run = open_run()
    dead = {"index": 3, "lost": {"t_ns": START_NS, "reason": "GPU is lost"}}
    run.manifest["telemetry"] = {"sources": {"nvml": {"state": "sampled", "asked_hz": 10.0, "devices": [dead]}}}
    code = codes_of(run)["gpu.lost"]
    assert code.level is Level.WARN
    assert "gpu-3 could not be used from the start" in code.text
