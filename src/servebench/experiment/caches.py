"""Whether a run began with an empty prefix cache: what the server said before, and what its counters say after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

MOST_BEYOND = 0.01  # share of the prompts' tokens found in the cache beyond what the scenario intends


@dataclass(frozen=True, slots=True)
class CacheState:
    """Of one run.

    Attributes:
        done: whether the server said that its cache is empty, or was started for the run.
        verified: whether its own hit counters agree; None where it has none.
        reason: in words.
    """

    done: bool
    verified: bool | None
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def cache_state(manifest: Mapping[str, Any] | None, summary: Mapping[str, Any] | None) -> CacheState:
    """Read both from what is stored of a run; neither need be there."""
    told = (manifest or {}).get("cache_reset") or {"done": False, "reason": "the run does not say"}
    counted = ((summary or {}).get("server_side") or {}).get("prefix_cache") or {}
    share = counted.get("beyond_share")
    if share is None and counted.get("queries") and not counted.get("hits"):
        share = 0.0  # no hit at all is none beyond, whatever was intended
    if share is None:
        why = counted.get("reason") or "the server's counters were not read"
        return CacheState(bool(told["done"]), None, f"{told['reason']}; not verified: {why}")
    verified = share <= MOST_BEYOND
    found = f"{share:.1%} of the prompts' tokens were found in the cache beyond what is intended"
    return CacheState(bool(told["done"]), verified, f"{told['reason']}; {found}")
