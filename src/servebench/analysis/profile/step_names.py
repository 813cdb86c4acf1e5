"""What the name of an engine's step says: how many requests and tokens it had in prefill and in decode."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from servebench.errors import UsageError
from servebench.profile.timeline import NONE

KINDS = ("prefill_only", "decode_only", "mixed", "idle", "unknown")
GROUPS = ("context_requests", "context_tokens", "generation_requests", "generation_tokens")

# vLLM: execute_context_2(512)_generation_7(7), and with `detailed_trace_annotation`
# execute_519_context_2(sq512sk900sqsq..sqsk..)_generation_7(sq7sk..)
_VLLM = re.compile(r"execute_(?:\d+_)?context_(\d+)\((?:sq)?(\d+)[^)]*\)_generation_(\d+)\((?:sq)?(\d+)[^)]*\)")
# SGLang: step[EXTEND bs=2 toks=1018], step[DECODE bs=63]
_SGLANG = re.compile(r"step\[\s*([A-Z][A-Z0-9_]*)([^\]]*)\]")
_SGLANG_KINDS = {
    "EXTEND": "prefill_only",
    "PREFILL": "prefill_only",
    "SPLIT_PREFILL": "prefill_only",
    "DLLM_EXTEND": "prefill_only",
    "DECODE": "decode_only",
    "TARGET_VERIFY": "decode_only",
    "MIXED": "mixed",
    "IDLE": "idle",
}  # a draft model's passes are parts of a step, not steps


class Named(NamedTuple):
    """A step by its name; numbers are `NONE` where the name does not tell them."""

    kind: str
    context_requests: int = NONE
    context_tokens: int = NONE
    generation_requests: int = NONE
    generation_tokens: int = NONE


def parse(name: str) -> Named | None:
    """Read the name of an annotation; None when it is no step of an engine whose names are known."""
    if found := _VLLM.search(name):
        return _counted(*(int(number) for number in found.groups()))
    if found := _SGLANG.search(name):
        return _sglang(found[1], found[2])
    return None


def parse_listed(names: Collection[str], name: str) -> Named | None:
    """The name of a step that the file itself marks as one (a JAX server does), of whatever kind; else None."""
    return Named("unknown") if name in names else None


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a user's pattern of step names. Raises UsageError when it is no regular expression."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f'the step pattern "{pattern}" is no regular expression: {error}') from error


def parse_with(pattern: re.Pattern[str], name: str) -> Named | None:
    """Read a name with a user's pattern, whose groups may be named as in `GROUPS`; None when it does not match."""
    found = pattern.search(name)
    if found is None:
        return None
    told = {key: int(text) for key, text in found.groupdict().items() if key in GROUPS and (text or "").isdigit()}
    if not {"context_requests", "context_tokens"} & told.keys() or "generation_requests" not in told:
        return Named("unknown", **told)
    context = told.get("context_requests", told.get("context_tokens", 0))
    return Named(_kind(context, told["generation_requests"]), **told)


def _counted(context: int, context_tokens: int, generation: int, generation_tokens: int) -> Named:
    return Named(_kind(context, generation), context, context_tokens, generation, generation_tokens)


def _kind(context: int, generation: int) -> str:
    if context:
        return "mixed" if generation else "prefill_only"
    return "decode_only" if generation else "idle"


def _sglang(mode: str, rest: str) -> Named | None:
    kind = _SGLANG_KINDS.get(mode)
    if kind is None:
        return None
    size, tokens = _number("bs", rest), _number("toks", rest)
    if kind == "prefill_only":
        return Named(kind, size, tokens, 0, 0)
    if kind == "decode_only":
        return Named(kind, 0, 0, size, tokens)
    return Named(kind)


def _number(key: str, text: str) -> int:
    found = re.search(rf"\b{key}=(\d+)", text)
    return int(found[1]) if found else NONE
