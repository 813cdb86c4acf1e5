"""discover: what is found out about servers good and bad, in how many requests, and how failures read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from servebench.engine.attach import EndpointFacts, discover, examine, extras_for, min_tokens_for
from servebench.engine.reach import open_client
from servebench.engine.sim.launch import start_sim
from servebench.engine.sim.settings import SimSettings
from servebench.errors import EngineError, ExitCode, ServebenchError, UsageError
from servebench.scenario import Scenario
from servebench.testing import (
    Close,
    RequestSeen,
    Reset,
    ScriptedServer,
    Send,
    json_response,
    response,
)
from servebench.workload.prompts import build_kit

VLLM = {"id": "org/Model-8B", "owned_by": "vllm", "root": "/models/m8", "max_model_len": 8192}
Answers = dict[str, Any]
SECRET = "sk-very-secret"


def model_list(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"object": "list", "data": list(entries)}


def vllm(*entries: dict[str, Any]) -> Answers:
    return {
        "/v1/models": model_list(*(entries or (VLLM,))),
        "/version": {"version": "0.32.0"},
        "/tokenize": {"count": 2, "max_model_len": 8192, "tokens": [5, 6]},
    }


@contextmanager
def serving(answers: Answers) -> Iterator[ScriptedServer]:
    """Play JSON objects, statuses, bytes (as HTML) or steps by path; 404 elsewhere."""

    def script(request: RequestSeen) -> Any:
        answer = answers.get(request.path, 404)
        if isinstance(answer, int):
            return json_response(answer, {"error": "no"})
        if isinstance(answer, bytes):
            return response(200, answer, {"content-type": "text/html"})
        return answer if isinstance(answer, list) else json_response(200, answer)

    with ScriptedServer(script) as server:
        yield server


def found(answers: Answers, model: str = "auto", prefix: str = "", **options: Any) -> EndpointFacts:
    with serving(answers) as server:
        facts = discover(server.url + prefix, "chat", model, **options)
    assert len(server.requests) <= 3
    assert server.connections == 1
    assert not any("completions" in request.path for request in server.requests)
    return replace(facts, url=facts.url.replace(server.url, "URL"))


def failure(answers: Answers, model: str = "auto", **options: Any) -> ServebenchError:
    with serving(answers) as server, pytest.raises(ServebenchError) as caught:
        discover(server.url, "chat", model, timeout=2.0, **options)
    one_clear_line(caught.value)
    return caught.value


def one_clear_line(error: ServebenchError) -> None:
    assert error.exit_code == ExitCode.USAGE
    assert "\n" not in str(error)
    assert SECRET not in str(error)


def test_a_vllm_server() -> None:
    assert found(vllm()) == EndpointFacts(
        url="URL",
        api="chat",
        model="org/Model-8B",
        engine="vllm",
        version="0.32.0",
        max_model_len=8192,
        extras=("ignore_eos", "min_tokens", "continuous_usage_stats"),
        has_tokenize=True,
        has_detokenize=True,
    )


@pytest.mark.parametrize("where", ["version", "owner"])
def test_the_simulated_engine_says_so(where: str) -> None:
    answers = vllm({"id": "sim", "owned_by": "servebench-sim" if where == "owner" else "someone"})
    if where == "version":
        answers["/version"] = {"version": "0.1.0", "engine": "servebench-sim"}
    facts = found(answers)
    assert (facts.engine, facts.simulated) == ("sim", True)
    assert "ignore_eos" in facts.extras


def test_an_unknown_server_gets_no_extras() -> None:
    facts = found({"/v1/models": model_list({"id": "gpt", "owned_by": "someone"})})
    assert (facts.engine, facts.version, facts.simulated, facts.extras) == ("unknown", None, False, ())
    assert (facts.has_tokenize, facts.has_detokenize, facts.max_model_len) == (False, None, None)


def test_sglang_is_known_but_takes_no_extras() -> None:
    facts = found({"/v1/models": model_list({"id": "m", "owned_by": "sglang"}), "/tokenize": {"count": 2}})
    assert (facts.engine, facts.extras, facts.has_detokenize) == ("sglang", (), True)


@pytest.mark.parametrize("answer", [405, b"<html>", {"tokens": []}, {"count": "2"}, json_response(200, [1])])
def test_a_tokenize_without_a_count_is_none(answer: Any) -> None:
    facts = found(vllm() | {"/tokenize": answer})
    assert (facts.has_tokenize, facts.has_detokenize) == (False, False)


@pytest.mark.parametrize("broken", [[Reset()], [Close()]])
def test_a_tokenize_that_breaks_the_connection_is_none(broken: Any) -> None:
    with serving(vllm() | {"/tokenize": broken}) as server:
        assert not discover(server.url, "chat").has_tokenize


@pytest.mark.parametrize("name", ["org/Model-8B", "/models/m8"])
def test_a_model_by_its_name_or_folder(name: str) -> None:
    other = {"id": "other", "owned_by": "vllm"}
    assert found(vllm(other, VLLM), name).model == "org/Model-8B"


def test_auto_takes_the_first_of_several_and_says_so() -> None:
    facts = found(vllm({"id": "first"}, VLLM))
    assert facts.model == "first"
    assert facts.notes == ('the server lists 2 models; "first", the first, is used',)


def test_an_unknown_model_is_told_the_nearest() -> None:
    error = failure(vllm(), "org/Model-7B")
    assert isinstance(error, UsageError)
    assert 'has no model "org/Model-7B" (did you mean "org/Model-8B"?); it lists: org/Model-8B' in str(error)


def test_a_long_list_of_models_is_cut() -> None:
    error = failure(vllm(*({"id": f"m{i:03}"} for i in range(400))), "zzzzzzz")
    assert "m004 and 395 more" in str(error)
    assert len(str(error)) < 200


def test_no_model_at_all() -> None:
    assert "lists no model" in str(failure({"/v1/models": model_list()}))
    assert "it lists: none" in str(failure({"/v1/models": model_list()}, "m"))


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (404, "GET /v1/models answered 404"),
        (b"<html>", "answered with text/html, not with a list of models"),
        ({"models": []}, "answered with application/json, not"),
    ],
)
def test_without_a_model_list_the_model_must_be_named(answer: Any, fault: str) -> None:
    error = failure({"/v1/models": answer})
    assert isinstance(error, EngineError)
    assert "is no OpenAI-compatible server" in str(error)
    assert fault in str(error)
    facts = found({"/v1/models": answer}, "gpt-9")
    assert facts.model == "gpt-9"
    assert fault in facts.notes[0]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"id": "tiny-random"}, True),
        ({"id": "m", "root": "/cache/tiny-random"}, True),
        ({"id": "m", "root": "/cache/tiny-random/../big"}, False),
        ({"id": "m"}, False),
    ],
)
def test_random_weights_by_name(entry: dict[str, Any], expected: bool) -> None:
    assert found(vllm(entry)).random_weights is expected


def test_random_weights_by_the_marker_in_the_models_folder(tmp_path: Path) -> None:
    assert not found(vllm({"id": "m", "root": str(tmp_path)})).random_weights
    (tmp_path / "RANDOM_WEIGHTS").touch()
    assert found(vllm({"id": "m", "root": str(tmp_path)})).random_weights


def test_a_folder_named_by_another_machine_is_not_looked_for_on_this_one(tmp_path: Path) -> None:
    (tmp_path / "RANDOM_WEIGHTS").touch()
    models = model_list({"id": "m", "root": str(tmp_path)})
    with httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, json=models))) as client:
        assert examine(client, "http://127.0.0.1:8000", "chat").random_weights
        assert not examine(client, "http://10.0.0.9:8000", "chat").random_weights


@pytest.mark.parametrize("length", [None, 0, -1, "8192", True])
def test_an_implausible_context_length_is_not_known(length: Any) -> None:
    assert found(vllm(VLLM | {"max_model_len": length})).max_model_len is None


@pytest.mark.parametrize("prefix", ["", "/", "/v1", "/v1/"])
def test_v1_may_be_given_or_not(prefix: str) -> None:
    assert found(vllm(), prefix=prefix).url == "URL"


def test_a_prefix_is_kept() -> None:
    answers = {f"/tenant/a{path}": answer for path, answer in vllm().items()}
    facts = found(answers, prefix="/tenant/a/v1")
    assert (facts.url, facts.has_tokenize) == ("URL/tenant/a", True)


@pytest.mark.parametrize(("key", "hint"), [(None, "it wants a key"), (SECRET, "the key was refused")])
@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_wants_another_key(key: str | None, hint: str, status: int) -> None:
    error = failure({"/v1/models": status}, api_key=key)
    assert isinstance(error, EngineError)
    assert f"answered {status}: {hint}" in str(error)
    assert "--api-key-env" in str(error)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (503, "answered 503 to GET /v1/models"),
        (response(302, b"", {"location": f"https://me:{SECRET}@new/v1?t={SECRET}"}), "redirects to https://new/v1:"),
        (response(307, b""), "redirects to elsewhere"),
        ([Close()], "not a usable HTTP answer"),
        ([Send(b"SSH-2.0-OpenSSH_9\r\n"), Close()], "not a usable HTTP answer"),
        (response(200, b"zzz", {"content-encoding": "gzip"}), "not a usable HTTP answer"),
    ],
)
def test_answers_that_end_it(answer: Any, message: str) -> None:
    for model in ("auto", "m"):
        error = failure({"/v1/models": answer}, model)
        assert isinstance(error, EngineError)
        assert message in str(error)


KNOWN = EndpointFacts("u", "chat", "m", engine="vllm", extras=("ignore_eos", "min_tokens", "continuous_usage_stats"))
UNKNOWN = EndpointFacts("u", "chat", "m")


def wishing(stream: bool = True, **extra_body: Any) -> Scenario:
    return Scenario.from_resolved(
        {
            "servebench": 1,
            "name": "wishes",
            "endpoint": {"stream": stream, "extra_body": extra_body},
            "workload": {"input_tokens": 8, "output_tokens": 8},
            "load": {"poisson": "1/s", "requests": 1},
        }
    )


@pytest.mark.parametrize(
    ("facts", "scenario", "expected"),
    [
        (UNKNOWN, wishing(), {"stream_options": {"include_usage": True}}),
        (UNKNOWN, wishing(stream=False), {}),
        (
            KNOWN,
            wishing(),
            {"ignore_eos": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ),
        (KNOWN, wishing(stream=False), {"ignore_eos": True}),
        (KNOWN, wishing(stream=False, ignore_eos=False, top_k=3), {"ignore_eos": False, "top_k": 3}),
        (
            KNOWN,
            wishing(stream_options={"continuous_usage_stats": False}),
            {"ignore_eos": True, "stream_options": {"include_usage": True, "continuous_usage_stats": False}},
        ),
    ],
)
def test_extras_only_where_known_and_the_scenario_wins(
    facts: EndpointFacts, scenario: Any, expected: dict[str, Any]
) -> None:
    assert extras_for(facts, scenario) == expected


@pytest.mark.parametrize(
    ("facts", "scenario", "expected"),
    [
        (KNOWN, wishing(), True),
        (KNOWN, wishing(top_k=3), True),
        (UNKNOWN, wishing(), False),
        (KNOWN, wishing(min_tokens=1), False),
        (KNOWN, wishing(ignore_eos=False), False),
    ],
)
def test_min_tokens_only_where_known_and_the_scenario_is_silent(
    facts: EndpointFacts, scenario: Any, expected: bool
) -> None:
    assert min_tokens_for(facts, scenario) is expected


def test_extras_do_not_change_the_scenario() -> None:
    scenario = wishing(stream_options={"include_usage": True})
    extras_for(KNOWN, scenario)
    assert dict(scenario.endpoint.extra_body) == {"stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with start_sim(SimSettings(), "sim-model") as process:
        yield process.url


def test_the_real_simulated_engine(sim_url: str) -> None:
    facts = discover(sim_url, "chat")
    assert (facts.model, facts.engine, facts.simulated, facts.notes) == ("sim-model", "sim", True, ())
    assert facts.has_tokenize
    assert facts.version
    assert facts.max_model_len


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_the_simulated_engine_counts_what_was_planned(sim_url: str, api: str) -> None:
    facts = discover(sim_url, api)
    path, key = ("/v1/chat/completions", "messages") if api == "chat" else ("/v1/completions", "prompt")
    with open_client(facts.url) as client:
        kit = build_kit(client, facts, api, facts.model)
        for tokens in (kit.minimum, 17, 400):
            prompt = kit.prompt(tokens, 1, 2)
            value = [{"role": "user", "content": prompt}] if api == "chat" else prompt
            answer = client.post(facts.url + path, json={"model": facts.model, key: value, "max_tokens": 1})
            assert answer.json()["usage"]["prompt_tokens"] == tokens
