"""Emptying the prefix cache of a server that runs already, so that no run finds what another one left there."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from servebench.engine.reach import send
from servebench.errors import EngineError

if TYPE_CHECKING:
    import httpx

ROUTE = "/reset_prefix_cache"
PATIENCE_S = 10.0  # for blocks that aborted requests still hold
PAUSE_S = 0.25


@dataclass(frozen=True, slots=True)
class CacheReset:
    """What became of the wish for an empty cache; `run.json` holds it as `cache_reset`.

    Attributes:
        asked: whether it was wished for.
        done: whether the cache was empty when the load began, by the server's own word.
        reason: why that is known, or why not.
    """

    asked: bool
    done: bool
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def by_launch(asked: bool) -> CacheReset:
    """A server that was started for the run has an empty cache."""
    return CacheReset(asked, True, "the server was started for this run")


NOT_ASKED = CacheReset(False, False, "not asked for; the prompts have a fresh salt of their own")


def reset_cache(client: httpx.Client, url: str, patience_s: float = PATIENCE_S) -> CacheReset:
    """Ask the server at `url` to forget its prefix cache; one that holds blocks of requests is asked again for a while.

    Never raises for what the server answers: a run with a fresh salt is none the worse for a cache that stays.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            response = send(client, url, "POST", ROUTE)
        except EngineError as error:
            return CacheReset(True, False, str(error))
        found = _read(response)
        if found is not None:
            return found
        if time.monotonic() > deadline:
            return CacheReset(True, False, f"the server still held blocks of requests after {patience_s:g} s")
        time.sleep(PAUSE_S)


def _read(response: httpx.Response) -> CacheReset | None:
    """What an answer means; None where the server could not do it now."""
    status = response.status_code
    if status in (404, 405):
        advice = "vLLM has it with VLLM_SERVER_DEV_MODE=1 in its environment"
        return CacheReset(True, False, f"the server has no POST {ROUTE} ({advice})")
    if status != 200:
        return CacheReset(True, False, f"POST {ROUTE} was answered with {status}")
    success = _success(response)
    if success is None:  # vLLM before it answered with a body
        return CacheReset(True, True, f"POST {ROUTE} was answered with 200 and no word on its success")
    return CacheReset(True, True, f"POST {ROUTE} succeeded") if success else None


def _success(response: httpx.Response) -> bool | None:
    try:
        body = response.json()
    except ValueError:
        return None
    told = body.get("success") if isinstance(body, dict) else None
    return told if isinstance(told, bool) else None
