"""Whether prompts met the server's prefix cache more than they were meant to: then their prefill was not measured."""

from __future__ import annotations

from typing import Any

import numpy as np

from servebench.analysis.data import MISSING, Ints, RunData
from servebench.analysis.facts import Facts
from servebench.analysis.rounding import rounded

BLOCK_SIZE = 16  # vLLM's default and the simulated engine's
DEFINITION = (
    "hits in tokens over the whole run; expected at most: of each prompt the whole blocks of what all prompts, or "
    "those of its group, have in common"
)


def describe(facts: Facts, queries: float | None, hits: float | None) -> dict[str, Any]:
    """`server_side.prefix_cache` of summary.json; see `server_side`. Arguments: growth over the run, in tokens."""
    leading = (facts.run.manifest.get("prompts") or {}).get("leading_tokens")
    size, source = block_size(facts.run)
    most = int(expected(facts.run, int(leading), size).sum()) if leading is not None else None
    beyond = max(hits - most, 0.0) if hits is not None and most is not None else None
    return {
        "reason": _missing(queries, hits, leading),
        "queries": rounded(queries),
        "hits": rounded(hits),
        "hit_share": rounded(hits / queries) if hits is not None and queries else None,
        "expected_at_most": most,
        "beyond": rounded(beyond),
        "beyond_share": rounded(beyond / queries) if beyond is not None and queries else None,
        "leading_tokens": leading,
        "block_size": size,
        "block_size_from": source,
        "definition": DEFINITION,
    }


def _missing(queries: float | None, hits: float | None, leading: int | None) -> str | None:
    if hits is None or queries is None:
        return "the server does not count the hits of its prefix cache"
    return "it is not known how many leading tokens all prompts share" if leading is None else None


def block_size(run: RunData) -> tuple[int, str]:
    """Tokens in a block of the server's cache, and where that is known from."""
    identity = run.manifest.get("server_identity") or {}
    server = (run.manifest.get("endpoint") or {}).get("server") or {}
    places = (
        ("server_identity", identity),
        ("the engine's settings", server.get("settings") or {}),
        ("the engine's flags", server.get("flags") or {}),
    )
    for where, known in places:
        stated = known.get("block_size") or known.get("block-size")
        if stated:
            return int(stated), where
    return BLOCK_SIZE, "assumed"


def expected(run: RunData, leading: int, size: int) -> Ints:
    """Most tokens that each request that was sent may find in the cache by intention, at most all but the last."""
    requests = run.requests
    sent = requests.sent != MISSING
    common = np.full(len(requests), leading, np.int64)
    if run.plan is not None:
        mine = run.plan.prefix_group[requests.index] >= 0
        common += np.where(mine, run.plan.prefix_tokens[requests.index], 0)
    whole = np.where(requests.input_tokens != MISSING, requests.input_tokens, requests.input_planned)
    blocks: Ints = np.minimum(common, np.maximum(whole - 1, 0))[sent] // size * size
    return blocks
