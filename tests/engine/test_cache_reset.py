"""Emptying a prefix cache: what each answer of a server means, and that it works on the simulated engine."""

from __future__ import annotations

import httpx
import pytest

from runs import OpenAI, execute, scenario, tokens
from servebench.engine.cache_reset import CacheReset, by_launch, reset_cache
from servebench.engine.sim.launch import start_sim
from servebench.engine.sim.settings import SimSettings
from servebench.experiment.caches import cache_state

URL = "http://127.0.0.1:9"
LONG = {"input_tokens": 200, "output_tokens": 5}


def reset(*answers: httpx.Response, patience_s: float = 5.0) -> CacheReset:
    left = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        assert (request.method, request.url.path) == ("POST", "/reset_prefix_cache")
        return left.pop(0) if len(left) > 1 else left[0]

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        return reset_cache(client, URL, patience_s)


@pytest.mark.parametrize(
    ("answer", "done", "reason"),
    [
        (httpx.Response(200, json={"success": True}), True, "succeeded"),
        (httpx.Response(200), True, "no word on its success"),
        (httpx.Response(404), False, "VLLM_SERVER_DEV_MODE=1"),
        (httpx.Response(405), False, "has no POST /reset_prefix_cache"),
        (httpx.Response(401), False, "was answered with 401"),
        (httpx.Response(500), False, "was answered with 500"),
    ],
)
def test_an_answer_says_whether_the_cache_is_empty(answer, done, reason):
    found = reset(answer)
    assert found.asked
    assert found.done is done
    assert reason in found.reason


def test_a_server_that_holds_blocks_is_asked_again():
    busy, free = httpx.Response(200, json={"success": False}), httpx.Response(200, json={"success": True})
    assert reset(busy, busy, free).done
    held = reset(busy, patience_s=0.0)
    assert not held.done
    assert "still held blocks" in held.reason


def test_a_server_that_cannot_be_reached_is_said_to_be_so():
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route")

    with httpx.Client(transport=httpx.MockTransport(refuse)) as client:
        found = reset_cache(client, URL)
    assert (found.done, "cannot be reached" in found.reason) == (False, True)


def test_a_launched_server_has_an_empty_cache():
    assert by_launch(True) == CacheReset(True, True, "the server was started for this run")


def test_a_reset_makes_the_same_words_new_to_a_running_server(tmp_path):
    wishes = scenario(tmp_path, {"constant": "10/s", "requests": 20, "drain": "5s"}, workload=LONG)
    states = []
    with start_sim(SimSettings(), "m", log_path=tmp_path / "log") as sim:
        for name, wish in (("first", True), ("again", False), ("reset", True)):
            result = execute(wishes, sim.url, tmp_path / name, workers=1, salt=7, reset_caches=wish)
            states.append(cache_state(result.rundir.manifest, result.summary))
    assert [state.done for state in states] == [True, False, True]
    assert [state.verified for state in states] == [True, False, True], states


def test_a_wish_that_cannot_be_met_is_a_warning(tmp_path):
    load = {"constant": "30/s", "requests": 3}
    with OpenAI(lambda n: tokens(3)) as server:
        result = execute(scenario(tmp_path, load), server.url, tmp_path / "run", workers=1, reset_caches=True)
    told = result.rundir.manifest["cache_reset"]
    assert (told["asked"], told["done"]) == (True, False)
    assert any("the prefix cache was not reset" in warning for warning in result.rundir.manifest["warnings"])
    assert cache_state(result.rundir.manifest, result.summary).verified is None
