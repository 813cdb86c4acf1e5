"""The shape of the served model, as far as the bytes and the FLOPs of a step follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NEEDED = ("layers", "hidden", "heads", "parameters", "dtype")
_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5}
_KINDS = {
    "fp32": ("float32", "float", "fp32"),
    "bf16": ("bfloat16", "bf16", "float16", "half", "fp16", "auto"),
    "fp8": ("fp8", "float8", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "int8", "w8a8"),
    "fp4": ("fp4", "nvfp4", "mxfp4", "modelopt_fp4"),
}
_FOUR_BIT_WEIGHTS = ("awq", "awq_marlin", "gptq", "gptq_marlin", "int4", "w4a16")  # computed in the model's dtype


class UnknownShapeError(ValueError):
    """The manifest does not hold enough of the model; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense transformer, or the part of a mixture of experts that one token uses.

    Attributes:
        layers, hidden, heads, kv_heads, head_dim: of its attention.
        parameters: those that a token uses.
        weight_bytes, kv_bytes: bytes of one weight, and of one number in the KV cache.
        kind: number format of its matrix products: ``fp32``, ``bf16``, ``fp8``, ``fp4``.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    parameters: float
    weight_bytes: float
    kv_bytes: float
    kind: str

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> ModelShape:
        """Read `server_identity.model`.

        Args:
            model: has the keys in `NEEDED`, and may have `kv_heads`, `head_dim`, `active_parameters`, `quantization`
                and `kv_dtype`.

        Raises:
            UnknownShapeError: a key is missing, or a number format is unknown.
        """
        missing = [key for key in NEEDED if not model.get(key)]
        if missing:
            why = model.get("parameters_reason")
            text = f"the model's {', '.join(missing)} not known"
            raise UnknownShapeError(f"{text}: {why}" if why else text)
        heads = int(model["heads"])
        kind, weight = _format(str(model["dtype"]), model.get("quantization"))
        kv = str(model.get("kv_dtype") or "auto")
        return cls(
            layers=int(model["layers"]),
            hidden=int(model["hidden"]),
            heads=heads,
            kv_heads=int(model.get("kv_heads") or heads),
            head_dim=int(model.get("head_dim") or int(model["hidden"]) // heads),
            parameters=float(model.get("active_parameters") or model["parameters"]),
            weight_bytes=weight,
            kv_bytes=_BYTES[_kind(str(model["dtype"]) if kv == "auto" else kv)],
            kind=kind,
        )

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one token has in the KV cache: keys and values of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_bytes

    @property
    def weights(self) -> float:
        """Bytes of the weights that a decode step reads."""
        return self.parameters * self.weight_bytes


def _format(dtype: str, quantization: object) -> tuple[str, float]:
    """Number format of the products, and bytes of a weight."""
    method = str(quantization or "").lower()
    if method in _FOUR_BIT_WEIGHTS:
        return _kind(dtype), 0.5
    kind = _kind(method or dtype)
    return kind, _BYTES[kind]


def _kind(word: str) -> str:
    name = word.lower().removeprefix("torch.")
    for kind, words in _KINDS.items():
        if name in words:
            return kind
    raise UnknownShapeError(f'the number format "{word}" is not known')
