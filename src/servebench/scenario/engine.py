"""The server under test, for the runs in which servebench starts it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator

from servebench.scenario.strict import Count, Duration, Flag, PositiveDuration, Strict, Text, problem
from servebench.units import describe

Scalar = str | int | float | bool | None
SECRET_NAMES = re.compile(r".*(api[-_]?key|token|secret|password)", re.IGNORECASE)


def flag_name(key: str) -> str:
    """A vLLM flag as it is stored: ``max-num-seqs``, whether ``max_num_seqs`` or ``--max-num-seqs`` was written."""
    return key.removeprefix("--").replace("_", "-")


class VllmEngine(Strict):
    """A vLLM to launch.

    Attributes:
        model: a name or path for vLLM, or the built-in ``tiny-random``.
        flags: of ``vllm serve``, without the leading dashes; true stands for the bare flag, false for its ``no-`` form,
            null leaves it out.
        env: environment variables, no secrets.
    """

    model: Text
    flags: dict[str, Scalar] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)

    @field_validator("flags", mode="before")
    @classmethod
    def _plain_flags(cls, flags: Any) -> Any:
        if not isinstance(flags, dict):
            raise problem(f"expected a mapping of vLLM flags, not {describe(flags)}")
        plain: dict[str, Scalar] = {}
        for key, value in flags.items():
            _refuse_secret(key)
            if not isinstance(value, (str, int, float, type(None))):
                raise problem(f"expected one value, not {describe(value)} (JSON goes into quotes)", key)
            if flag_name(key) in plain:
                raise problem(f'the flag "{flag_name(key)}" is given twice', key)
            plain[flag_name(key)] = value
        return plain

    @field_validator("env", mode="before")
    @classmethod
    def _plain_env(cls, env: Any) -> Any:
        if not isinstance(env, dict):
            raise problem(f"expected a mapping of environment variables, not {describe(env)}")
        for key, value in env.items():
            _refuse_secret(key)
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                raise problem(f"expected text or a number, not {describe(value)}", key)
        return {key: str(value) for key, value in env.items()}


def _refuse_secret(key: str) -> None:
    if SECRET_NAMES.fullmatch(key):
        raise problem("secrets are taken from the environment only, never from a scenario", key)


class SimEngine(Strict):
    """The simulated engine: its step-time model and its scheduler.

    A step takes base + per_prefill_token·(prompt tokens in it) + per_sequence·(sequences that decode in it) +
    per_context_token·(context tokens that these hold), in seconds.

    Attributes:
        max_num_batched_tokens: token budget of a step; longer prompts are prefilled in chunks.
        max_num_seqs: sequences that run at a time.
        kv_tokens: tokens that the KV cache holds.
        block_size: tokens in a KV block.
        enable_prefix_caching: whether full blocks are found again by their hash.
    """

    base: PositiveDuration = 0.004
    per_prefill_token: Duration = 60e-6
    per_sequence: Duration = 40e-6
    per_context_token: Duration = 2e-9
    max_num_batched_tokens: Count = 2048
    max_num_seqs: Count = 256
    kv_tokens: Count = 400_000
    block_size: Count = 16
    enable_prefix_caching: Flag = True

    accepts: ClassVar[tuple[str, ...]] = (
        *("base", "per_prefill_token", "per_sequence", "per_context_token", "kv_tokens"),
        *("max-num-batched-tokens", "max-num-seqs", "block-size", "enable-prefix-caching"),
        *("max_num_batched_tokens", "max_num_seqs", "block_size", "enable_prefix_caching"),
    )

    @classmethod
    def shape(cls, data: Any, base: Path) -> Any:
        """Accept vLLM's spelling with dashes."""
        if not isinstance(data, dict):
            return data
        for key in data:
            if "-" in key and key.replace("-", "_") in data:
                raise problem(f'"{key}" is given twice', key)
        return {key.replace("-", "_"): value for key, value in data.items()}


class Engine(Strict):
    """Both may be given: the command line says which one runs."""

    vllm: VllmEngine | None = None
    sim: SimEngine | None = None
