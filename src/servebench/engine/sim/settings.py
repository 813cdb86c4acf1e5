"""What the simulated engine is told: the cost of a step and the limits of its scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from servebench.errors import UsageError, did_you_mean


@dataclass(frozen=True, slots=True)
class SimSettings:
    """The knobs of the simulated engine, under vLLM's names where vLLM has them.

    Attributes:
        base: seconds that every step takes, whatever is in it; not zero, since an engine of no cost would never rest.
        per_prefill_token: seconds for each prompt token computed in a step.
        per_sequence: seconds for each sequence that decodes in a step.
        per_context_token: seconds for each KV token that the step's sequences attend to.
        max_num_batched_tokens: token budget of a step, so also the largest prefill chunk.
        max_num_seqs: most requests that run at once.
        kv_tokens: capacity of the KV cache in tokens; rounded down to whole blocks.
        block_size: tokens in a KV block.
        enable_prefix_caching: keep finished blocks and reuse them by the hash of their prefix.
    """

    base: float = 4e-3
    per_prefill_token: float = 60e-6
    per_sequence: float = 40e-6
    per_context_token: float = 2e-9
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    kv_tokens: int = 400_000
    block_size: int = 16
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        if not self.base > 0:
            raise UsageError(f"engine.sim.base must be positive, got {self.base}")
        for name in ("per_prefill_token", "per_sequence", "per_context_token"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"engine.sim.{name} must not be negative, got {getattr(self, name)}")
        for name in ("max_num_batched_tokens", "max_num_seqs", "block_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"engine.sim.{name} must be at least 1, got {getattr(self, name)}")
        if self.kv_tokens < self.block_size:
            raise UsageError(f"engine.sim.kv_tokens must hold a block of {self.block_size}, got {self.kv_tokens}")

    @property
    def num_blocks(self) -> int:
        """KV blocks in all."""
        return self.kv_tokens // self.block_size

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus answer in tokens: what the whole KV cache holds."""
        return self.num_blocks * self.block_size

    @classmethod
    def of(cls, source: object) -> SimSettings:
        """Take the settings from a mapping, or from any object with attributes of these names.

        Raises:
            UsageError: a mapping has an unknown key, or a value is out of range.
        """
        names = [field.name for field in fields(cls)]
        if isinstance(source, Mapping):
            for key in source:
                if key not in names:
                    raise UsageError(f'engine.sim has no key "{key}"{did_you_mean(str(key), names)}')
            return cls(**source)
        return cls(**{name: getattr(source, name) for name in names})

    def to_dict(self) -> dict[str, float | int | bool]:
        """Return the settings as plain JSON-able values; `of` takes them back."""
        return asdict(self)
