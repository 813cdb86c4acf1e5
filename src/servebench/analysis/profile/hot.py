"""Hot functions: where the processors' time went, by what was on the stacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from servebench.analysis.rounding import rounded
from servebench.profile.stacks import Stacks
from servebench.profile.symbols import short_name

MOST = 25


def hot(stacks: Stacks, counters: Mapping[str, Any] | None = None, flame_graph: str | None = None) -> dict[str, Any]:
    """List the functions that samples were found in.

    Self share: of the samples, those whose innermost frame is the function. Share: those that have it anywhere, each
    sample once, however often the function calls itself. Instances of a C++ template count together. The first
    `MOST` by self share are listed, and the first `MOST` by share; in the order of self share.

    Returns:
        {"samples", "functions": [{"name", "share", "self_share", "module"}], "counters", "flame_graph"}; shares are of
        1; no functions without samples.
    """
    own: Counter[tuple[str, str]] = Counter()
    anywhere: Counter[tuple[str, str]] = Counter()
    names = [(short_name(frame.name), frame.module) for frame in stacks.frames]
    for path, count in stacks.per_path().items():
        frames = [names[frame] for frame in stacks.paths[path]]
        for name in set(frames):
            anywhere[name] += count
        if frames:
            own[frames[-1]] += count
    return {
        "samples": stacks.total,
        "functions": [_function(name, anywhere, own, stacks.total) for name in _listed(anywhere, own)],
        "counters": None if counters is None else dict(counters),
        "flame_graph": flame_graph,
    }


def _listed(anywhere: Counter[tuple[str, str]], own: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    def order(name: tuple[str, str]) -> tuple[int, int, tuple[str, str]]:
        return -own[name], -anywhere[name], name

    by_own = sorted(own, key=order)[:MOST]
    by_share = sorted(anywhere, key=lambda name: (-anywhere[name], name))[:MOST]
    return sorted({*by_own, *by_share}, key=order)


def _function(
    name: tuple[str, str], anywhere: Counter[tuple[str, str]], own: Counter[tuple[str, str]], total: int
) -> dict[str, Any]:
    return {
        "name": name[0],
        "share": rounded(anywhere[name] / total),
        "self_share": rounded(own[name] / total),
        "module": name[1] or None,
    }
