"""vLLM's routes for CUDA's profiler: they bracket a capture range, and in it vLLM names each engine step in NVTX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servebench.profile.tool import ProfileError

if TYPE_CHECKING:
    from servebench.profile.server import Server

ADVICE = "start vLLM with --profiler-config.profiler cuda"


def start_profile(server: Server, steps: int | None, limit_s: float) -> None:
    """POST /start_profile.

    Args:
        steps: engine steps after which vLLM ends the range by itself; None for no such limit.

    Raises:
        ProfileError: the server has no such route, is capturing already, or did not answer.
    """
    _post(server, "/start_profile", {} if steps is None else {"max_iterations": steps}, limit_s)


def stop_profile(server: Server, limit_s: float) -> None:
    """POST /stop_profile, also needed after the range ended by its steps. Raises ProfileError."""
    _post(server, "/stop_profile", {}, limit_s)


def _post(server: Server, path: str, body: dict[str, int], limit_s: float) -> None:
    import httpx

    try:
        with server.client(limit_s) as client:
            answer = client.post(path, json=body)
    except httpx.TimeoutException:
        raise ProfileError(f"{path} did not answer within {limit_s:g} s") from None
    except httpx.HTTPError as error:
        raise ProfileError(f"{path} failed: {error or type(error).__name__}") from None
    if answer.status_code == 404:
        raise ProfileError(f"the server has no {path}: {ADVICE}")
    if answer.status_code >= 400:
        raise ProfileError(f"{path} answered {answer.status_code}: {answer.text.strip()[:200]}")
