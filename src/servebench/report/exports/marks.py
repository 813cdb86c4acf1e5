"""What a reader of an export must not miss, wherever it ends up."""

from __future__ import annotations

from typing import Any

WORDS = {"simulated": "SIMULATED", "random_weights": "RANDOM WEIGHTS", "incomplete": "INCOMPLETE"}


def marks(summary: dict[str, Any]) -> str:
    """That no real engine or model made the figures, or that the run was cut short; empty for none of it."""
    return ", ".join(word for key, word in WORDS.items() if summary[key])


def title(summary: dict[str, Any]) -> str:
    """Name, verdict and marks of a run in one line."""
    parts = (summary["name"] or "unnamed", f"verdict {summary['verdict']['status']}", marks(summary))
    return " · ".join(" ".join(part.split()) for part in parts if part)


def model(summary: dict[str, Any]) -> str | None:
    """The model as the server calls it; None when it was never known."""
    found = (summary["endpoint"] or {}).get("model")
    return None if found is None else str(found)
