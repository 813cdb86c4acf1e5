"""Which GPUs were sampled, and which of them the server used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from servebench.analysis.data import RunData, Series
from servebench.analysis.facts import Facts
from servebench.analysis.phases import PHASES, Phases
from servebench.analysis.sampling import told
from servebench.engine.reach import is_loopback

SOURCES = ("nvml", "remote")
ASSUMED = "the only GPU in sight, and it worked while the server had requests"
BUSY_PERCENT = 5.0  # mean utilisation outside idle phases from which the only GPU in sight is taken for the server's


@dataclass(frozen=True, slots=True)
class Gpu:
    """A sampled GPU.

    Attributes:
        source, device: as in the telemetry table.
        uuid, name: by the driver; None where it was not told.
        used: whether the server used it; None where that is not known.
        how: from what `used` follows: ``manifest``, ``processes``, ``assumed``, or None.
        why: the sampler's reason for it, if it has one.
    """

    source: str
    device: str
    uuid: str | None
    name: str | None
    used: bool | None
    how: str | None
    why: str | None

    def series(self, run: RunData, name: str) -> Series | None:
        """One of its series; None where it has no sample."""
        found = run.telemetry.get((self.source, self.device, name))
        return found if found is not None and found.t.size else None


def find(facts: Facts, phases: Phases) -> tuple[Gpu, ...]:
    """The GPUs of a run, in the order of source and device.

    Used is what the manifest says (`server_identity.gpus`: indices, UUIDs or devices); else what the sampler found by
    the processes on them (`server_uses` of a device); else the only GPU in sight, if it worked while a server on its
    machine had requests.
    """
    run = facts.run
    keys = sorted({(s, d) for s, d, _ in run.telemetry if s in SOURCES and _is_gpu(d)}, key=_place)
    named = _stated(run)
    found = [_gpu(run, source, device, named) for source, device in keys]
    if len(found) == 1 and found[0].used is None and _works(facts, phases, found[0]):
        return (replace(found[0], used=True, how="assumed", why=ASSUMED),)
    return tuple(found)


def _is_gpu(device: str) -> bool:
    return device.rpartition("/")[2].startswith("gpu-")


def _place(key: tuple[str, str]) -> tuple[str, str, int]:
    source, device = key
    front, _, number = device.rpartition("-")
    return source, front, int(number) if number.isdigit() else 0


def _stated(run: RunData) -> set[str] | None:
    """Indices, UUIDs or devices that the manifest names as the server's; None where it names none."""
    named = (run.manifest.get("server_identity") or {}).get("gpus")
    return {str(name) for name in named} if named is not None else None


def _gpu(run: RunData, source: str, device: str, named: set[str] | None) -> Gpu:
    facts = _facts(run, source, device)
    uuid, name = facts.get("uuid"), facts.get("name")
    if named is not None:
        used = bool(named & {device, str(facts.get("index", _index(device))), str(uuid)})
        return Gpu(source, device, uuid, name, used, "manifest", None)
    seen: bool | None = facts.get("server_uses")
    how = "processes" if seen is not None else None
    return Gpu(source, device, uuid, name, seen, how, facts.get("server_uses_reason"))


def _index(device: str) -> str:
    return device.rpartition("gpu-")[2]


def _facts(run: RunData, source: str, device: str) -> dict[str, Any]:
    """What the sampler says of a device; those of another machine carry the name that their rows have."""
    for each in told(run, source).get("devices") or []:
        if each.get("device", f"gpu-{each.get('index')}") == device:
            return dict(each)
    return {}


def _works(facts: Facts, phases: Phases, gpu: Gpu) -> bool:
    """Whether the GPU was busy while the server had requests; one of this machine, only where the server is, too."""
    url = (facts.run.manifest.get("endpoint") or {}).get("url") or ""
    series = gpu.series(facts.run, "util_gpu")
    if facts.run.manifest.get("simulated") or series is None or (gpu.source == "nvml" and not is_loopback(url)):
        return False
    busy = series.value[phases.at(series.t) != PHASES.index("idle")]
    return bool(busy.size) and float(busy.mean()) > BUSY_PERCENT
