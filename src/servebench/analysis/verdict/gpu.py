"""`gpu.*`: whether the GPUs of the server were what they are sold as, and the server's alone.

Utilisation by itself drives no code: a GPU that is "100 % busy" may be doing next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis import gpus, phases
from servebench.analysis.data import Series
from servebench.analysis.facts import Facts
from servebench.analysis.gpus import Gpu
from servebench.analysis.phases import PHASES, Phases
from servebench.analysis.sampling import told
from servebench.analysis.verdict.codes import Code, Level, above, unmeasured
from servebench.telemetry.clock_reasons import REASONS, ClockReason, Kind, decode

THROTTLED_FAIL = 0.01  # of the samples with work
MOVED_WARN = 0.05
BINS, LEAST_IN_BIN = 20, 3
HARDWARE_XIDS = frozenset({48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120})  # memory, links, firmware, off the bus
IDLE_BIT = next(reason.bit for reason in REASONS if reason.kind is Kind.IDLE)


def check(facts: Facts) -> list[Code]:
    """All codes of the family over the GPUs that the server used or may have used; none where no such GPU was seen."""
    found = phases.find(facts)
    mine = [gpu for gpu in gpus.find(facts, found) if gpu.used is not False]
    lost_early = _lost_before(facts)
    if not mine and not lost_early:
        return []
    look = _Look(facts, found, mine)
    checks: tuple[Callable[[_Look], Code], ...] = (throttled, clock_moved, foreign_process, ecc, xid)
    return [lost(look, lost_early), *(each(look) for each in checks if mine)]


def _lost_before(facts: Facts) -> list[str]:
    """GPUs that were lost already when the sampling began, whoever uses them: they left no sample."""
    seen = {(source, device) for source, device, _ in facts.run.telemetry}
    return [
        f"gpu-{device['index']}"
        for source in gpus.SOURCES
        for device in told(facts.run, source).get("devices") or []
        if device.get("lost") and (source, f"gpu-{device['index']}") not in seen
    ]


class _Look:
    """The GPUs in question, and their samples inside the measured window."""

    def __init__(self, facts: Facts, found: Phases, mine: list[Gpu]) -> None:
        self.run = facts.run
        self.window = facts.window
        self.phases = found
        self.gpus = mine

    def inside(self, gpu: Gpu, name: str) -> Series | None:
        """Samples of the window; None without any."""
        series = gpu.series(self.run, name)
        if series is None:
            return None
        inside = series.within(self.window.warmup_end, self.window.throughput_end)
        return inside if inside.t.size else None

    def working(self, gpu: Gpu, name: str) -> Series | None:
        """Those of them at which the server had requests; None without any."""
        series = self.inside(gpu, name)
        if series is None:
            return None
        busy = self.phases.at(series.t) != PHASES.index("idle")
        return Series(series.t[busy], series.value[busy]) if busy.any() else None

    def device(self, gpu: Gpu) -> dict[str, Any]:
        """The manifest's facts on a GPU."""
        devices = told(self.run, gpu.source).get("devices") or []
        return next((dict(d) for d in devices if f"gpu-{d.get('index')}" == gpu.device), {})

    def growth(self, name: str) -> dict[str, float]:
        """By how much a counter grew over all samples, by GPU."""
        series = {gpu.device: gpu.series(self.run, name) for gpu in self.gpus}
        return {device: float(s.value[-1] - s.value[0]) for device, s in series.items() if s is not None}


def throttled(look: _Look) -> Code:
    """Share of the samples with work at which heat, the power supply or the board held the clocks of a GPU down.

    That the power limit holds them down is normal at full load; its share is told.
    """
    masks = {gpu.device: s.value.astype(np.int64) for gpu in look.gpus if (s := look.working(gpu, "clock_reasons"))}
    if not masks:
        return unmeasured("gpu.throttled", "%", "no GPU says why its clocks are what they are")
    shares = {device: _share(mask, Kind.SLOWDOWN) for device, mask in masks.items()}
    worst = max(shares, key=lambda device: shares[device])
    text = f"{worst} was slowed down in {100 * shares[worst]:.1f} % of the samples with work"
    if names := _names(masks[worst], Kind.SLOWDOWN):
        text += f" ({', '.join(names)})"
    capped = max(_share(mask, Kind.POWER_CAP) for mask in masks.values())
    text += f"; at its power limit in {100 * capped:.0f} %" if capped else ""
    unknown = sorted({name for mask in masks.values() for name in _names(mask, Kind.UNKNOWN)})
    text += f"; unknown reasons: {', '.join(unknown)}" if unknown else ""
    step = "the GPU was slower than it can be: look at its cooling and power, then run again"
    return above("gpu.throttled", 100 * shares[worst], "%", text, step, warn=0.0, fail=100 * THROTTLED_FAIL)


def _share(masks: NDArray[np.int64], kind: Kind) -> float:
    bits = sum(reason.bit for reason in REASONS if reason.kind is kind)
    return float(np.mean((masks & bits) != 0))


def _names(masks: NDArray[np.int64], kind: Kind) -> list[str]:
    reasons: list[ClockReason] = list(decode(float(np.bitwise_or.reduce(masks))))
    return [reason.name for reason in reasons if reason.kind is kind]


def clock_moved(look: _Look) -> Code:
    """How far the SM clock moved while there was work: largest less smallest median of 20 stretches of the window."""
    moves = {gpu.device: move for gpu in look.gpus if (move := _moved(look, gpu)) is not None}
    if not moves:
        return unmeasured("gpu.clock_moved", "%", "too few samples of the SM clock with work")
    worst = max(moves, key=lambda device: moves[device][0])
    share, low, high = moves[worst]
    text = f"the SM clock of {worst} was {low:.0f} to {high:.0f} MHz while it worked (medians of stretches)"
    step = "latencies moved with it: warm up for longer, or lock the clocks (nvidia-smi -lgc)"
    return above("gpu.clock_moved", 100 * share, "%", text, step, warn=100 * MOVED_WARN)


def _moved(look: _Look, gpu: Gpu) -> tuple[float, float, float] | None:
    """(share of the median, smallest, largest) of the stretches' medians; None with fewer than two stretches."""
    clock, reasons = look.working(gpu, "clock_sm_mhz"), gpu.series(look.run, "clock_reasons")
    if clock is None:
        return None
    if reasons is not None:  # between two requests a GPU may be idle although the server is not
        last = np.searchsorted(reasons.t, clock.t, side="right") - 1
        works = (last < 0) | (reasons.value[np.maximum(last, 0)].astype(np.int64) & IDLE_BIT == 0)
        clock = Series(clock.t[works], clock.value[works])
    edges = np.linspace(look.window.warmup_end, look.window.throughput_end, BINS + 1)[1:-1]
    bins = np.searchsorted(edges, clock.t, side="right")
    parts = [clock.value[bins == number] for number in range(BINS)]
    medians = [float(np.median(part)) for part in parts if part.size >= LEAST_IN_BIN]
    if len(medians) < 2 or np.median(medians) <= 0:
        return None
    return (max(medians) - min(medians)) / float(np.median(medians)), min(medians), max(medians)


def foreign_process(look: _Look) -> Code:
    """Most processes at a time that are not the server's and had memory on one of its GPUs."""
    most = {gpu.device: float(s.value.max()) for gpu in look.gpus if (s := look.inside(gpu, "foreign_processes"))}
    if not most:
        reasons = (look.device(gpu).get("foreign_reason") for gpu in look.gpus)
        why = next(filter(None, reasons), "the driver does not list the processes on the GPU")
        return unmeasured("gpu.foreign_process", "processes", why)
    worst = max(most, key=lambda device: most[device])
    text = (
        f"at most {most[worst]:.0f} foreign processes on {worst}" if most[worst] else "no foreign process on the GPUs"
    )
    step = "the GPU was shared: end the other process (nvidia-smi lists it), then run again"
    return above("gpu.foreign_process", most[worst], "processes", text, step, warn=0)


def ecc(look: _Look) -> Code:
    """Memory errors that were counted during the run: uncorrected ones fail, corrected ones and remapped rows warn."""
    hard, soft, rows = (look.growth(name) for name in ("ecc_uncorrected", "ecc_corrected", "remapped_rows"))
    if not hard and not soft:
        return unmeasured("gpu.ecc", "errors", "the GPU counts no ECC errors")
    uncorrected, corrected, remapped = (sum(counted.values()) for counted in (hard, soft, rows))
    text = f"{uncorrected:.0f} uncorrected and {corrected:.0f} corrected ECC errors during the run"
    text += f", {remapped:.0f} rows of memory remapped" if remapped else ""
    step = "the memory of the GPU is failing: run its diagnosis (dcgmi diag) before any other measurement"
    if uncorrected > 0:
        return Code("gpu.ecc", Level.FAIL, uncorrected, 0, "errors", text, step)
    return above("gpu.ecc", corrected + remapped, "errors", text, step, warn=0)


def lost(look: _Look, lost_early: list[str]) -> Code:
    """GPUs that stopped answering, or did not answer from the start."""
    gone = {gpu.device: look.device(gpu).get("lost") for gpu in look.gpus}
    reasons = {device: fact["reason"] for device, fact in gone.items() if fact}
    text = "every GPU of the server answered to the end"
    if reasons or lost_early:
        words = [f"{device} was lost ({reason})" for device, reason in reasons.items()]
        text = ", ".join([*words, *(f"{device} could not be used from the start" for device in lost_early)])
    step = "see the kernel's log (dmesg) for what happened to it, then run again"
    if not reasons:  # that one was lost before is known of GPUs that the server may never have used
        return above("gpu.lost", len(lost_early), "GPUs", text, step, warn=0)
    return above("gpu.lost", len(reasons) + len(lost_early), "GPUs", text, step, fail=0)


def xid(look: _Look) -> Code:
    """XID errors of the driver during the run; those that tell of the hardware fail."""
    seen = {gpu.device: [int(x["xid"]) for x in look.device(gpu).get("xids") or []] for gpu in look.gpus}
    for gpu in look.gpus:
        series = gpu.series(look.run, "xid")
        if series is not None and not seen[gpu.device]:
            seen[gpu.device] = [int(value) for value in np.unique(series.value) if value]
    if not any(seen.values()) and not any(gpu.series(look.run, "xid") for gpu in look.gpus):
        return unmeasured("gpu.xid", "errors", "the driver does not tell of XID errors")
    numbers = [number for found in seen.values() for number in found]
    text = "no XID error of the driver"
    if numbers:
        text = "; ".join(f"{device}: XID {', '.join(map(str, found))}" for device, found in seen.items() if found)
    step = "look the XID up in the driver's documentation, and see the kernel's log (dmesg)"
    fail = 0 if HARDWARE_XIDS & set(numbers) else None
    return above("gpu.xid", len(numbers), "errors", text, step, warn=0, fail=fail)
