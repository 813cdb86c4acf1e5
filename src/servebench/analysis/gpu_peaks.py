"""What GPUs can do at most, by their makers' data sheets: memory bandwidth, and dense tensor FLOP/s by number format.

Dense figures: data sheets that state only sparse ones (twice as many) are halved. A manifest may bring its own figures
in `server_identity.gpu_peaks`: `{"bandwidth": bytes/s, "flops": {"bf16": FLOP/s}, "source": str}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Peaks:
    """The limits of one GPU.

    Attributes:
        bandwidth: of its memory, bytes/s.
        flops: FLOP/s by number format: ``fp32`` (tensor TF32 excluded), ``bf16`` (fp16 is the same), ``fp8``, ``fp4``.
        source: where the figures are from.
    """

    bandwidth: float
    flops: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    def at(self, kind: str) -> float | None:
        """FLOP/s in a number format; where the GPU has no units for it, in the next wider one."""
        for name in _WIDER[_WIDER.index(kind) :]:
            if name in self.flops:
                return self.flops[name]
        return None


_WIDER = ("fp4", "fp8", "bf16", "fp32")

_H100 = "NVIDIA H100 Tensor Core GPU data sheet (sparse figures halved)"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet (sparse figures halved)"
_A100 = "NVIDIA A100 Tensor Core GPU data sheet"
_L4 = "NVIDIA L4 Tensor Core GPU data sheet (sparse figures halved)"
_L40S = "NVIDIA L40S data sheet"
_B200 = "NVIDIA DGX B200 data sheet, an eighth of the system (sparse figures halved)"

# The first entry whose words all occur in the driver's name of the GPU is taken, so the narrower come first.
_TABLE: tuple[tuple[tuple[str, ...], Peaks], ...] = (
    (("B200",), Peaks(8.0e12, {"fp32": 75e12, "bf16": 2250e12, "fp8": 4500e12, "fp4": 9000e12}, _B200)),
    (("H200", "NVL"), Peaks(4.8e12, {"fp32": 60e12, "bf16": 835.5e12, "fp8": 1670.5e12}, _H200)),
    (("H200",), Peaks(4.8e12, {"fp32": 67e12, "bf16": 989.5e12, "fp8": 1979e12}, _H200)),
    (("H100", "NVL"), Peaks(3.9e12, {"fp32": 60e12, "bf16": 835.5e12, "fp8": 1670.5e12}, _H100)),
    (("H100", "PCIe"), Peaks(2.0e12, {"fp32": 51e12, "bf16": 756.5e12, "fp8": 1513e12}, _H100)),
    (("H100",), Peaks(3.35e12, {"fp32": 67e12, "bf16": 989.5e12, "fp8": 1979e12}, _H100)),
    (("A100", "SXM", "80GB"), Peaks(2.039e12, {"fp32": 19.5e12, "bf16": 312e12}, _A100)),
    (("A100", "80GB"), Peaks(1.935e12, {"fp32": 19.5e12, "bf16": 312e12}, _A100)),
    (("A100",), Peaks(1.555e12, {"fp32": 19.5e12, "bf16": 312e12}, _A100)),
    (("L40S",), Peaks(0.864e12, {"fp32": 91.6e12, "bf16": 362.05e12, "fp8": 733e12}, _L40S)),
    (("L4",), Peaks(0.300e12, {"fp32": 30.3e12, "bf16": 121e12, "fp8": 242.5e12}, _L4)),
)


def peaks_of(name: str | None) -> Peaks | None:
    """The peaks of a GPU by the driver's name of it, such as ``NVIDIA H100 80GB HBM3``; None for an unknown one.

    A slice of a GPU (MIG) has less than the whole, and a name that goes on ("L40" is no "L4") is another GPU.
    """
    words = (name or "").replace("-", " ").split()
    if "MIG" in words:
        return None
    return next((peaks for wanted, peaks in _TABLE if all(_named(word, words) for word in wanted)), None)


def _named(wanted: str, words: list[str]) -> bool:
    return any(word == wanted or (wanted == "SXM" and word.startswith("SXM")) for word in words)


def stated_peaks(stated: Mapping[str, Any]) -> Peaks:
    """The peaks that a manifest brings; see the head of the module."""
    flops = {str(kind): float(value) for kind, value in (stated.get("flops") or {}).items()}
    return Peaks(float(stated["bandwidth"]), flops, str(stated.get("source") or "the manifest"))
