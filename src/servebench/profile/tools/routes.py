"""vLLM's routes that start and stop its profilers; they are there only when it was started with one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from servebench.profile.tool import ProfileError

if TYPE_CHECKING:
    import httpx

    from servebench.profile.server import Server

START, STOP = "/start_profile", "/stop_profile"
ASK_S = 10.0
QUOTED = 300


class Routes:
    """The two routes of one server.

    Args:
        advice: what to do for a server that lacks them, as in "start vLLM with ...".
        limit_s: how long a start and a stop may take each; a stop lasts until the trace is stored.
    """

    def __init__(self, server: Server, advice: str, limit_s: float) -> None:
        self._server = server
        self._advice = advice
        self._limit_s = limit_s

    def check(self) -> None:
        """Ask whether they are there, without starting anything. Raises ProfileError with what to do if not."""
        self._ask("OPTIONS", START, ASK_S)

    def start(self, body: Mapping[str, Any]) -> None:
        """Start; a capture that somebody else left running is stopped before.

        Raises:
            ProfileError: it did not start.
        """
        answer = self._ask("POST", START, self._limit_s, body)
        if answer.status_code == 409:
            self.stop()
            answer = self._ask("POST", START, self._limit_s, body)
        _accept(START, answer)

    def stop(self) -> None:
        """Stop, also a capture that ended by itself. Returns once it is stored; raises ProfileError if it is not."""
        _accept(STOP, self._ask("POST", STOP, self._limit_s))

    def _ask(self, method: str, path: str, limit_s: float, body: Mapping[str, Any] | None = None) -> httpx.Response:
        import httpx

        try:
            with self._server.client(limit_s) as client:
                answer = client.request(method, f"{self._server.url}{path}", json=body)
        except httpx.TimeoutException:
            raise ProfileError(f"the server did not answer {path} within {limit_s:g} s") from None
        except httpx.HTTPError as error:
            raise ProfileError(f"the server did not answer {path}: {error or type(error).__name__}") from None
        if answer.status_code == 404:
            raise ProfileError(f"the server has no {path}: {self._advice}")
        return answer


def _accept(path: str, answer: httpx.Response) -> None:
    if answer.is_success:
        return
    said = " ".join(answer.text.split())[:QUOTED]
    raise ProfileError(f"the server answered {path} with {answer.status_code}: {said or 'no text'}")
