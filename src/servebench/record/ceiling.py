"""What this machine's load generator has shown that it carries: the last self-test, kept in the user's cache."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def ceiling_path() -> Path:
    """``$XDG_CACHE_HOME/servebench/selftest.json``, with the cache folder's usual default."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "servebench" / "selftest.json"


def read_ceiling() -> dict[str, Any] | None:
    """The last self-test's figures; None if there was none or its file is damaged."""
    try:
        figures = json.loads(ceiling_path().read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return figures if isinstance(figures, dict) else None


def write_ceiling(figures: dict[str, Any]) -> None:
    """Keep the figures of a self-test, replacing the last ones as a whole."""
    path = ceiling_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    scratch.replace(path)
