"""The shape of a model by its config.json, and about how many parameters that makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMULA = (
    "embeddings × (1 if tied else 2) + layers × (attention + MLP), with embeddings = vocabulary × hidden, attention = "
    "2 × hidden × head_dim × (heads + kv_heads), MLP = 3 (2 if not gated) × hidden × intermediate; a sparse layer has "
    "experts × 3 × hidden × expert_intermediate + hidden × experts instead. Active are those that one token needs: "
    "experts_per_token of the experts, and the embeddings once. Norms, biases and adapters are left out"
)
_UNGATED = frozenset(
    {"bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt", "opt", "phi", "starcoder2"}
)
_TIED = frozenset(  # where the file leaves it out, and the class of the model has it so
    {"bloom", "cohere", "cohere2", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "gpt_bigcode", "mpt"}
    | {"opt", "starcoder2"}
)
_OTHER_LAYERS = ("kv_lora_rank", "ssm_cfg", "mamba_d_state", "linear_num_value_heads", "state_size", "rwkv_version")

_NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim",),
    "intermediate": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"),
    "vocabulary": ("vocab_size",),
    "max_length": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "sliding_window": ("sliding_window",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "moe_topk"),
    "expert_intermediate": ("moe_intermediate_size", "expert_intermediate_size"),
    "shared_experts": ("n_shared_experts",),
    "shared_intermediate": ("shared_expert_intermediate_size",),
    "dense_layers": ("first_k_dense_replace",),
}

Shape = dict[str, Any]


def describe_model(config: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Shape:
    """The shape that a config.json in the usual spelling states.

    Args:
        config: the file's object; of a model with several parts, that of its text part counts.
        overrides: what the server does otherwise: dtype, quantization, kv_dtype, max_length.

    Returns:
        architecture, model_type, the keys of `_NAMES`, tied_embeddings, dtype, quantization, kv_dtype, parameters and
        active_parameters (those that one token needs; both estimates) with their formula; None for what is not stated,
        and `parameters_reason` where there is no estimate.
    """
    text = {**config, **_text_part(config)}
    shape: Shape = {name: _first(text, spellings) for name, spellings in _NAMES.items()}
    architectures = text.get("architectures") or []
    shape |= {
        "architecture": str(architectures[0]) if architectures else None,
        "model_type": text.get("model_type"),
        "tied_embeddings": bool(text.get("tie_word_embeddings", text.get("model_type") in _TIED)),
        "dtype": str(text.get("dtype") or text.get("torch_dtype") or "") or None,
        "quantization": _quantization(config.get("quantization_config") or text.get("quantization_config")),
        "kv_dtype": None,
    }
    shape = _completed(shape) | dict(overrides or {})
    return shape | _parameters(shape, text)


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(key), Mapping):
            part: Mapping[str, Any] = config[key]
            return part
    return {}


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _completed(shape: Shape) -> Shape:
    """With what follows from the rest: one KV head a head, and the head's share of the hidden size."""
    heads, hidden = shape["heads"], shape["hidden"]
    if heads:
        shape["kv_heads"] = shape["kv_heads"] or heads
        shape["head_dim"] = shape["head_dim"] or (hidden // heads if hidden else None)
    return shape


def _quantization(config: object) -> str | None:
    """The method's name; where that says little, the format that it makes."""
    if not isinstance(config, Mapping):
        return None
    method = str(config.get("quant_method") or config.get("quant_algo") or "").lower()
    if method == "bitsandbytes":
        return "int4" if config.get("load_in_4bit") else "int8"
    if method == "modelopt":
        return str(config.get("quant_algo") or method).lower()
    if method == "compressed-tensors":
        return _compressed(config) or method
    return method or None


def _compressed(config: Mapping[str, Any]) -> str | None:
    for group in (config.get("config_groups") or {}).values():
        weights = (group or {}).get("weights") or {}
        known = {"float8": "fp8", "int8": "int8", "int4": "int4", "float4": "fp4"}
        form = known.get(f"{weights.get('type')}{weights.get('num_bits')}")
        if form:
            return form
    return None


def _parameters(shape: Shape, config: Mapping[str, Any]) -> Shape:
    reason = _no_estimate(shape, config)
    if reason:
        return {"parameters": None, "active_parameters": None, "formula": None, "parameters_reason": reason}
    embeddings = shape["vocabulary"] * shape["hidden"]
    attention = 2 * shape["hidden"] * shape["head_dim"] * (shape["heads"] + shape["kv_heads"])
    total, active = _mlps(shape)
    return {
        "parameters": embeddings * (1 if shape["tied_embeddings"] else 2) + shape["layers"] * attention + total,
        "active_parameters": embeddings + shape["layers"] * attention + active,
        "formula": FORMULA,
        "parameters_reason": None,
    }


def _no_estimate(shape: Shape, config: Mapping[str, Any]) -> str | None:
    needed = ("layers", "hidden", "heads", "vocabulary")
    missing = [name for name in needed if not shape[name]]
    if not (shape["intermediate"] or shape["expert_intermediate"]):
        missing.append("intermediate")
    if missing:
        return f"its config.json does not state {', '.join(missing)}"
    if any(config.get(key) for key in _OTHER_LAYERS):
        return "it has layers of another kind than attention with plain keys and values"
    return None


def _mlps(shape: Shape) -> tuple[int, int]:
    """(all, used by one token): parameters of the MLPs of all layers."""
    hidden, layers = shape["hidden"], shape["layers"]
    dense = (2 if shape["model_type"] in _UNGATED else 3) * hidden * (shape["intermediate"] or 0)
    experts = shape["experts"] or 0
    if experts < 2:
        return layers * dense, layers * dense
    one = 3 * hidden * (shape["expert_intermediate"] or shape["intermediate"])
    shared = (shape["shared_experts"] or 0) * one + 3 * hidden * (shape["shared_intermediate"] or 0) + hidden * experts
    first = min(shape["dense_layers"] or 0, layers)
    sparse = layers - first
    used = min(shape["experts_per_token"] or experts, experts)
    return first * dense + sparse * (shared + experts * one), first * dense + sparse * (shared + used * one)
