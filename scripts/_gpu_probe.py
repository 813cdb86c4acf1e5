"""Asks NVML for a few seconds, as a run does, and tells what each question costs on this driver, as JSON."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from servebench.telemetry.nvml import NvmlSource
from servebench.telemetry.nvml_device import Gpu

HZ = 20


def main() -> None:
    """Print the facts, the costs and the lines for people."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probe", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--server", type=int, action="append", default=[], help="process of the server")
    options = parser.parse_args()
    source = NvmlSource(HZ, server_pids=options.server)
    began = time.perf_counter()
    source.open()
    opened = time.perf_counter() - began
    samples = sample(source, options.probe)
    costs = {gpu.device: reader_costs(gpu) for gpu in source._gpus}
    facts = source.facts()
    source.close()
    print(json.dumps({"facts": facts, **samples, "costs_us": costs, "lines": lines(facts, opened, samples, costs)}))


def sample(source: NvmlSource, seconds: float) -> dict[str, Any]:
    """Sample at HZ and measure each sample."""
    wall: list[float] = []
    last: dict[str, float | None] = {}
    cpu, began = time.thread_time(), time.perf_counter()
    for beat in range(int(seconds * HZ)):
        time.sleep(max(0.0, began + beat / HZ - time.perf_counter()))
        start = time.perf_counter()
        readings = source.sample()
        wall.append((time.perf_counter() - start) * 1e3)
        last |= {f"{device} {name}": value for device, name, value, *_ in readings}
    share = (time.thread_time() - cpu) / (time.perf_counter() - began)
    wall.sort()
    return {"cpu_share": share, "sample_ms": {"p50": wall[len(wall) // 2], "max": wall[-1]}, "last": last}


def reader_costs(gpu: Gpu, rounds: int = 20) -> dict[str, dict[str, float]]:
    """Median and largest duration of each question, in µs."""
    readers = [*gpu._fast, *(turn.reader for turn in gpu._turns), *(turn.reader for turn in gpu._lengthy)]
    costs = {}
    for reader in readers + ([gpu._gpm] if gpu._gpm is not None else []):
        took = []
        for _ in range(rounds if reader.names else 0):
            start = time.perf_counter()
            reader.read()
            took.append((time.perf_counter() - start) * 1e6)
        if took:
            costs[" ".join(reader.names)] = {"p50": sorted(took)[len(took) // 2], "max": max(took)}
    return costs


def lines(facts: dict[str, Any], opened: float, samples: dict[str, Any], costs: dict[str, Any]) -> list[str]:
    """The same for people."""
    text = [f"driver {facts['driver']}, CUDA {facts['cuda']}, NVML {facts['nvml']}; opened in {opened * 1e3:.0f} ms"]
    for device in facts["devices"]:
        shown = {key: value for key, value in device.items() if key not in ("uuid", "not_supported", "stand_ins")}
        text += [f"gpu-{device['index']} " + ", ".join(f"{key} {value}" for key, value in shown.items())]
        text += [f"     not supported: {device['not_supported']}", f"     stand-ins: {device['stand_ins']}"]
    took = samples["sample_ms"]
    text += [f"a sample takes {took['p50']:.2f} ms (median), {took['max']:.2f} ms at most"]
    text += [f"{samples['cpu_share']:.2%} of a core at {HZ} Hz"]
    for device, readers in costs.items():
        text += [
            f"     {device} {cost['p50']:8.0f} µs, max {cost['max']:8.0f}  {name}" for name, cost in readers.items()
        ]
    return text + [f"     {name:32} {value}" for name, value in samples["last"].items()]


if __name__ == "__main__":
    main()
