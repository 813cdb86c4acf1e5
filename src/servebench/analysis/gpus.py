"""Which GPUs were sampled, and which of them the server used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from servebench.analysis.data import RunData, Series
from servebench.analysis.facts import Facts
from servebench.analysis.phases import Phases
from servebench.analysis.sampling import told
from servebench.engine.reach import is_loopback

SOURCES = ("nvml", "remote")
BUSY_PERCENT = 5.0  # mean utilisation outside idle phases from which the only GPU in sight is taken for the server's


@dataclass(frozen=True, slots=True)
class Gpu:
    """A sampled GPU.

    Attributes:
        source, device: as in the telemetry table.
        uuid, name: by the driver; None where it was not told.
        used: whether the server used it; None where that is not known.
        how: from what `used` follows: ``manifest``, ``processes``, ``assumed``, or None.
    """

    source: str
    device: str
    uuid: str | None
    name: str | None
    used: bool | None
    how: str | None

    def series(self, run: RunData, name: str) -> Series | None:
        """One of its series; None where it has no sample."""
        found = run.telemetry.get((self.source, self.device, name))
        return found if found is not None and found.t.size else None


def find(facts: Facts, phases: Phases) -> tuple[Gpu, ...]:
    """The GPUs of a run, in the order of source and device.

    Used is what the manifest says (`server_identity.gpus`: indices, UUIDs or devices; or `used_by_server` of a device
    in `telemetry.sources.*.devices`); else the GPUs on which the driver saw a process of the server; else the only GPU
    in sight, if it worked while a server on this machine had requests.
    """
    run = facts.run
    keys = sorted({(s, d) for s, d, _ in run.telemetry if s in SOURCES and d.startswith("gpu-")}, key=_place)
    named = _stated(run)
    found = [_gpu(run, source, device, named) for source, device in keys]
    if any(gpu.used for gpu in found):  # the server's processes were seen: where they were not, they are not
        return tuple(gpu if gpu.used is not None else _with(gpu, False, "processes") for gpu in found)
    if len(found) == 1 and found[0].used is None and _works(facts, phases, found[0]):
        return (_with(found[0], True, "assumed"),)
    return tuple(found)


def _place(key: tuple[str, str]) -> tuple[str, int, str]:
    source, device = key
    number = device.rpartition("-")[2]
    return source, int(number) if number.isdigit() else 0, device


def _with(gpu: Gpu, used: bool, how: str) -> Gpu:
    return Gpu(gpu.source, gpu.device, gpu.uuid, gpu.name, used, how)


def _stated(run: RunData) -> set[str] | None:
    """Indices, UUIDs or devices that the manifest names as the server's; None where it names none."""
    named = (run.manifest.get("server_identity") or {}).get("gpus")
    return {str(name) for name in named} if named is not None else None


def _gpu(run: RunData, source: str, device: str, named: set[str] | None) -> Gpu:
    index = device.removeprefix("gpu-")
    facts = _facts(run, source, index)
    uuid, name = facts.get("uuid"), facts.get("name")
    if named is not None:
        return Gpu(source, device, uuid, name, bool(named & {index, device, str(uuid)}), "manifest")
    if facts.get("used_by_server") is not None:
        return Gpu(source, device, uuid, name, bool(facts["used_by_server"]), "processes")
    seen = _processes_seen(run, source, device)
    return Gpu(source, device, uuid, name, seen, "processes" if seen is not None else None)


def _facts(run: RunData, source: str, index: str) -> dict[str, Any]:
    devices = told(run, source).get("devices") or []
    return next((dict(d) for d in devices if str(d.get("index")) == index), {})


def _processes_seen(run: RunData, source: str, device: str) -> bool | None:
    """True when the driver ever saw a process that is not foreign; None otherwise: pids of a container may differ."""
    both = (run.telemetry.get((source, device, name)) for name in ("processes", "foreign_processes"))
    everyone, foreign = both
    if everyone is None or foreign is None:
        return None
    _, mine, theirs = np.intersect1d(everyone.t, foreign.t, return_indices=True)
    return True if bool(np.any(everyone.value[mine] > foreign.value[theirs])) else None


def _works(facts: Facts, phases: Phases, gpu: Gpu) -> bool:
    """Whether the GPU was busy while the server had requests, on the machine of the client."""
    url = (facts.run.manifest.get("endpoint") or {}).get("url") or ""
    series = gpu.series(facts.run, "util_gpu")
    if facts.run.manifest.get("simulated") or series is None or (gpu.source == "nvml" and not is_loopback(url)):
        return False
    busy = series.value[phases.at(series.t) != 0]
    return bool(busy.size) and float(busy.mean()) > BUSY_PERCENT
