"""How long a step of the simulated engine takes."""

from __future__ import annotations

from servebench.engine.sim.scheduler import Step
from servebench.engine.sim.settings import SimSettings


def step_seconds(step: Step, cost: SimSettings) -> float:
    """Return base + per_prefill_token·P + per_sequence·D + per_context_token·C, in seconds.

    P is the prefill tokens computed in the step, D the sequences that decode, C the KV tokens that all attend to.
    """
    return (
        cost.base
        + cost.per_prefill_token * step.prefill_tokens
        + cost.per_sequence * step.decode_sequences
        + cost.per_context_token * step.context_tokens
    )
