"""Why a GPU runs at the clocks it does: NVML's clock-event reasons, bit by bit.

Source: nvml.h, "Clocks Event Reasons" (called throttle reasons before driver 535). The header's two masks of all
reasons disagree with each other, and new drivers add bits, so nothing is masked away: an unknown bit keeps its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a reason means for a measurement."""

    IDLE = "idle"  # nothing to do: no throttling
    SETTING = "setting"  # somebody chose these clocks
    POWER_CAP = "power_cap"  # at the power limit, which is normal at full load; report its share
    SLOWDOWN = "slowdown"  # heat, power supply or the board: the GPU is not what it is sold as
    UNKNOWN = "unknown"  # a bit that is newer than this table


@dataclass(frozen=True, slots=True)
class ClockReason:
    """One bit.

    Attributes:
        bit: the bit itself, such as 0x4.
        name: NVML's name without its prefix.
        kind: see `Kind`.
    """

    bit: int
    name: str
    kind: Kind

    @property
    def throttles(self) -> bool:
        """Whether clocks are below what was asked for while there is work."""
        return self.kind in (Kind.POWER_CAP, Kind.SLOWDOWN)


REASONS: tuple[ClockReason, ...] = (
    ClockReason(0x1, "GpuIdle", Kind.IDLE),
    ClockReason(0x2, "ApplicationsClocksSetting", Kind.SETTING),
    ClockReason(0x4, "SwPowerCap", Kind.POWER_CAP),
    ClockReason(0x8, "HwSlowdown", Kind.SLOWDOWN),
    ClockReason(0x10, "SyncBoost", Kind.SETTING),
    ClockReason(0x20, "SwThermalSlowdown", Kind.SLOWDOWN),
    ClockReason(0x40, "HwThermalSlowdown", Kind.SLOWDOWN),
    ClockReason(0x80, "HwPowerBrakeSlowdown", Kind.SLOWDOWN),
    ClockReason(0x100, "DisplayClockSetting", Kind.SETTING),
    ClockReason(0x200, "BoardLimit", Kind.SLOWDOWN),
    ClockReason(0x400, "Reliability", Kind.SLOWDOWN),
)

_KNOWN = {reason.bit: reason for reason in REASONS}


def decode(mask: float) -> tuple[ClockReason, ...]:
    """Reasons in `mask`, lowest bit first; an unknown bit is called after its number ("0x800").

    Args:
        mask: NVML's bit mask; a float, as in the telemetry table, holds it exactly up to 2**53.
    """
    bits = int(mask)
    return tuple(_reason(1 << place) for place in range(bits.bit_length()) if bits >> place & 1)


def _reason(bit: int) -> ClockReason:
    return _KNOWN.get(bit) or ClockReason(bit, f"{bit:#x}", Kind.UNKNOWN)


def names(mask: float) -> tuple[str, ...]:
    """Names of the reasons in `mask`."""
    return tuple(reason.name for reason in decode(mask))


def throttles(mask: float) -> bool:
    """Whether any reason in `mask` holds the clocks down against what was asked for; idle and settings do not."""
    return any(reason.throttles for reason in decode(mask))
