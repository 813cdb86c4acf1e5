"""The sections of summary.json that join telemetry and the server's own figures to what the client saw."""

from __future__ import annotations

from typing import Any

from servebench.analysis import cold, energy, interference, join, phases, roofline, sampling, server_side
from servebench.analysis.facts import Facts


def describe(facts: Facts) -> dict[str, Any]:
    """All of them by key; each section's shape is at the head of its module."""
    found = phases.find(facts)
    beside = interference.describe(facts)
    return {
        "telemetry": sampling.describe(facts),
        "phases_joined": phases.describe(facts, found) | {"tables": join.describe(facts, found)},
        "interference": beside,
        "server_side": server_side.describe(facts),
        "energy": energy.describe(facts, found),
        "cold_start": cold.describe(facts),
        "roofline": roofline.describe(facts, found, beside["without_prefill"]["mean"]),
    }
