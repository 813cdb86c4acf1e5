"""The GPU check: see `scripts/gpu-check`. The output goes to the terminal, to check.txt and, as data, to check.json."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
START_LIMIT_S = 120.0
RUN_LIMIT_S = 240.0
PYPROJECT = ROOT / "pyproject.toml"
INDIRECT = ("annotated-types", "pbr", "pydantic-core", "typing-inspection")  # what wheels without dependencies lack

SCENARIOS = {
    "open": """\
servebench: 1
name: gpu-check-open
description: idle, prefill and decode by turns, for the tables that join them to the GPU
workload:
  input_tokens: {{lognormal: {{mean: {prompt}, cv: 1.0, min: 16, max: 3k}}}}
  output_tokens: {{lognormal: {{mean: {answer}, cv: 0.6, min: 4, max: 400}}}}
load: {{poisson: {rate}/s, duration: {seconds}s, warmup: 3s, drain: 20s}}
""",
    "closed": """\
servebench: 1
name: gpu-check-closed
description: a full batch, for power, clocks and what limits them
workload: {{input_tokens: {prompt}, output_tokens: {answer}}}
load: {{closed: {{concurrency: {streams}}}, duration: {seconds}s, warmup: 3s, drain: 20s}}
""",
}


def main() -> int:
    """Run the check; 0 if everything that was to be seen was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="without a GPU: a tiny model, a stub in NVML's place")
    parser.add_argument("--seconds", type=int, default=45, help="measured window of each load")
    parser.add_argument("--out", type=Path, help="folder for the output; default results/gpu-check-DATE-TIME")
    options = parser.parse_args()
    if missing := missing_packages():
        return missing_message(missing)
    out = options.out or ROOT / "results" / time.strftime("gpu-check-%Y%m%d-%H%M%S")
    out.mkdir(parents=True)
    with Report(out) as report:
        return Check(options, out.resolve(), report).run()


def missing_packages() -> list[str]:
    """Requirements of servebench, and torch, that this Python does not have."""
    listed = re.search(r"(?ms)^dependencies = \[(.*?)^\]", PYPROJECT.read_text())
    assert listed is not None
    names = [re.split(r"[><=;\s]", line.strip(' ",'))[0] for line in listed[1].strip().splitlines()]
    absent = [name for name in (*names, *INDIRECT) if not _installed(name)]
    return absent + ([] if importlib.util.find_spec("torch") else ["torch"])


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def missing_message(missing: list[str]) -> int:
    """Say what is missing and how to bring it."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    print(f"{sys.executable} (Python {version}) lacks: {' '.join(missing)}", file=sys.stderr)
    fetch = f"pip download --no-deps --only-binary=:all: --python-version {version} -d WHEELS {' '.join(missing)}"
    print(f"Elsewhere: {fetch}\nHere: SERVEBENCH_WHEELS=WHEELS scripts/gpu-check", file=sys.stderr)
    return 2


class Report:
    """What is printed, and its copy on disk."""

    def __init__(self, out: Path) -> None:
        self.data: dict[str, Any] = {"checks": {}}
        self._out = out
        self._copy = (out / "check.txt").open("w")

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self._copy.close()
        (self._out / "check.json").write_text(json.dumps(self.data, indent=1) + "\n")

    def line(self, text: str = "") -> None:
        """Print a line."""
        print(text, flush=True)
        self._copy.write(text + "\n")
        self._copy.flush()

    def title(self, text: str) -> None:
        """Print a heading."""
        self.line(f"\n== {text}")

    def check(self, name: str, good: bool, text: str) -> None:
        """Print a check and remember how it ended."""
        self.data["checks"][name] = {"good": good, "text": text}
        self.line(f"{'ok  ' if good else 'FAIL'} {name}: {text}")


class Check:
    """All of it, one part after the other."""

    def __init__(self, options: argparse.Namespace, out: Path, report: Report) -> None:
        self._options = options
        self._out = out
        self._report = report
        self._environment = dict(os.environ)
        self._cpu: bool = options.cpu

    def run(self) -> int:
        """Return the exit code."""
        began = time.monotonic()
        if self._cpu:
            self._play_stub()
        elif not self._has_gpu():
            return 2
        self._in_child("idle", "--probe", "3")
        with self._server() as (pid, url):
            if self._cpu:
                self._play_stub(pid)
            self._in_child("server", "--probe", "2", "--server", str(pid))
            for name in SCENARIOS:
                self._load(name, url)
        self._report.title("Checks")
        self._judge()
        took = time.monotonic() - began
        self._report.check("duration", took < 360, f"{took:.0f} s (limit 360)")
        failed = [name for name, check in self._report.data["checks"].items() if not check["good"]]
        self._report.line(f"\n{'everything was seen' if not failed else 'not good: ' + ', '.join(failed)}")
        self._report.line(f"kept in {self._out.name}/: check.txt, check.json and the run directories")
        return 1 if failed else 0

    def _has_gpu(self) -> bool:
        import torch

        if torch.cuda.is_available():
            self._report.line(f"torch {torch.__version__} sees {torch.cuda.get_device_name(0)}")
            return True
        self._report.line(f"torch {torch.__version__} sees no GPU here; scripts/gpu-check --cpu runs without one")
        return False

    def _play_stub(self, server: int | None = None) -> None:
        """Put a stub in NVML's place, for processes that start from now on; `server` has memory on it."""
        from servebench.testing.nvml_stub import GIB, Points, StubGpu, StubMachine, StubProcess, install

        folder = self._out / "stub"
        folder.mkdir(exist_ok=True)
        saw = [(float(t), 150_000.0 + 400_000 * (t // 5 % 2)) for t in range(0, 600, 5)]
        steady = {"util_gpu": 80, "clock_reasons": 4, "gpm_sm": 60, "mem_used": 20 * GIB}
        values: dict[str, float | Points] = {"power_instant": saw, **steady}
        guests = (StubProcess(server, 20 * GIB),) if server is not None else ()
        install(StubMachine(gpus=(StubGpu(values=values, processes=guests, name="Stub of an H100"),)), folder)
        self._environment["LD_LIBRARY_PATH"] = str(folder)
        if server is None:
            self._report.line("THE GPU IS A STUB: its figures are a script's")

    def _in_child(self, name: str, *arguments: str) -> None:
        """Probe NVML in a process of its own, where the stub can take its place."""
        command = [sys.executable, str(ROOT / "scripts" / "_gpu_probe.py"), *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=60, check=False)
        self._report.title(f"NVML: {name}")
        if done.returncode:
            self._report.check(f"nvml_{name}", False, (done.stderr.strip().splitlines() or ["no reason given"])[-1])
            return
        found = json.loads(done.stdout)
        self._report.data[f"nvml_{name}"] = found
        for line in found["lines"]:
            self._report.line(line)

    @contextmanager
    def _server(self) -> Iterator[tuple[int, str]]:
        device = "cpu" if self._cpu else "cuda"
        command = [sys.executable, str(ROOT / "scripts" / "_gpu_server.py"), "--device", device]
        with (self._out / "server.log").open("w") as log:
            server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        try:
            began = time.monotonic()
            assert server.stdout is not None
            ready = server.stdout.readline().split()
            if not ready:
                raise SystemExit(f"the server did not start: {(self._out / 'server.log').read_text()[-2000:]}")
            self._report.line(f"server ready after {time.monotonic() - began:.1f} s")
            yield server.pid, f"http://127.0.0.1:{ready[1]}"
        finally:
            server.kill()
            server.wait()

    def _load(self, name: str, url: str) -> None:
        sizes = CPU_SIZES if self._cpu else GPU_SIZES
        scenario = self._out / f"{name}.yaml"
        scenario.write_text(SCENARIOS[name].format(seconds=self._options.seconds, **sizes))
        self._report.title(f"servebench run {scenario.name}")
        command = [sys.executable, "-m", "servebench", "run", str(scenario), "--endpoint", url, "--workers", "1"]
        command += ["--out", str(self._out / name)]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False
        )
        self._report.line(done.stdout.rstrip() or done.stderr.strip()[-2000:])
        good = done.returncode in (0, 3)  # INVALID is a result, too
        self._report.check(f"run_{name}", good, f"exit code {done.returncode}")

    def _judge(self) -> None:
        for name in SCENARIOS:
            path = self._out / name
            if (path / "run.json").exists():
                self._judge_run(name, path)

    def _judge_run(self, name: str, path: Path) -> None:
        from servebench.record.rundir import RunDir

        run = RunDir.open(path)
        source = (run.manifest.get("telemetry") or {}).get("sources", {}).get("nvml") or {}
        check = self._report.check
        sampled = source.get("state") == "sampled"
        check(f"{name}.sampled", sampled, "yes" if sampled else f"{source.get('state')}: {source.get('reason')}")
        if not sampled:
            return
        hz, gap = source["achieved_hz"], source["longest_gap_s"]
        check(f"{name}.rate", hz > 0.95 * source["asked_hz"], f"{hz:.2f} Hz of {source['asked_hz']:g}, gap {gap:.3f} s")
        share = source["cpu_s"] / (source["samples"] / hz)
        check(f"{name}.cost", share < 0.02, f"{share:.2%} of a core for NVML")
        self._report.line(f"     not supported: {', '.join(source['not_supported']) or 'nothing'}")
        series = series_of(run.telemetry())
        self._energy(name, series)
        for (device, value), rows in sorted(series.items()):
            self._report.line(summary_line(device, value, [v for _, v in rows]))

    def _energy(self, name: str, series: Mapping[tuple[str, str], list[tuple[int, float | None]]]) -> None:
        for device in sorted({device for device, _ in series}):
            counter = [(t, v) for t, v in series.get((device, "energy_j"), ()) if v is not None]
            power = [(t, v) for t, v in series.get((device, "power_w"), ()) if v is not None]
            if len(counter) < 2 or len(power) < 2:
                continue
            counted = counter[-1][1] - counter[0][1]
            summed = sum((a[1] + b[1]) / 2 * (b[0] - a[0]) / 1e9 for a, b in itertools.pairwise(power))
            text = f"{device}: counter {counted:.1f} J, integral of the power {summed:.1f} J"
            self._report.check(f"{name}.energy", abs(counted / summed - 1) < 0.1 if summed else False, text)


GPU_SIZES = {"prompt": 600, "answer": 60, "rate": 4, "streams": 24}
CPU_SIZES = {"prompt": 200, "answer": 30, "rate": 2, "streams": 3}


def series_of(table: Any) -> dict[tuple[str, str], list[tuple[int, float | None]]]:
    """Rows (t_ns, value) of NVML by device and name."""
    series: dict[tuple[str, str], list[tuple[int, float | None]]] = {}
    for row in table.to_pylist():
        if row["source"] == "nvml":
            series.setdefault((row["device"], row["name"]), []).append((row["t_ns"], row["value"]))
    return series


def summary_line(device: str, name: str, values: list[float | None]) -> str:
    """One line on a series: population is every sample of the run."""
    known = [value for value in values if value is not None]
    if not known:
        return f"     {device} {name:22} n {len(values):5}, all null"
    low, mean, high = min(known), sum(known) / len(known), max(known)
    nulls = len(values) - len(known)
    return f"     {device} {name:22} n {len(values):5}, null {nulls}: min {low:.6g}  mean {mean:.6g}  max {high:.6g}"


if __name__ == "__main__":
    sys.exit(main())
