"""Greedy probes: which texts, what is sent, and that whatever a server answers becomes a record or a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs import EVENTS, Result, execute, scenario, tokens
from servebench.run import probing
from servebench.run.probing import MOST, Probe, probe_set
from servebench.testing import Hang, Script, ScriptedServer, json_response, response, usage

LOAD = {"constant": "50/s", "requests": 2, "drain": "5s"}


class Server(ScriptedServer):
    """Answers the load in a regular way and the probes as `answer` says of their number; keeps their bodies."""

    def __init__(self, answer: Callable[[int], Script]) -> None:
        super().__init__(self._reply_to)
        self._of_probe = answer
        self.probes: list[dict[str, Any]] = []

    def _reply_to(self, seen: Any) -> Script:
        if seen.path == "/v1/models":
            return json_response(200, {"data": [{"id": "scripted", "max_model_len": 3000}]})
        if seen.path != EVENTS.path:
            return json_response(404, {"error": "no such path"})
        body = seen.json()
        if body.get("stream"):
            return tokens(10)
        if body["max_tokens"] != probing.MAX_TOKENS:  # of the kit, before the load
            return json_response(200, EVENTS.whole("tok", usage(len(body["messages"][0]["content"].split()), 1)))
        self.probes.append(body)
        return self._of_probe(len(self.probes) - 1)


def good(number: int) -> Script:
    return json_response(200, EVENTS.whole(f"answer {number}", usage(20, 3)))


def probed(tmp_path: Path, server: Server, probes: int = 4, **more: Any) -> tuple[Result, list[dict[str, Any]]]:
    result = execute(scenario(tmp_path, LOAD, **more), server.url, tmp_path / "run", probes=probes, telemetry=False)
    return result, json.loads((tmp_path / "run" / "probes.json").read_text())


class TestSet:
    def test_is_the_same_every_time(self) -> None:
        assert probe_set(MOST, None) == probe_set(MOST, None)
        assert probe_set(3, None)[1].text.startswith("Name the first ten words of this list: ")
        assert len({probe.id for probe in probe_set(MOST, None)}) == MOST

    def test_any_four_in_a_row_have_a_long_one(self) -> None:
        words = [len(probe.text.split(": ")[1].split()) for probe in probe_set(MOST, None)]
        assert words == [probe.words for probe in probe_set(MOST, None)]
        assert sorted(words)[-4:] == [1500, 2000, 2500, 3000]
        assert all(max(words[i : i + 4]) >= 1500 for i in range(MOST - 3))

    def test_none_is_longer_than_a_third_of_the_context(self) -> None:
        assert max(probe.words for probe in probe_set(MOST, 1200)) == 400
        assert min(probe.words for probe in probe_set(MOST, 2)) == 1

    def test_a_text_that_was_cut_is_another_probe(self) -> None:
        whole, cut = probe_set(2, None)[1], probe_set(2, 600)[1]
        assert whole.id != cut.id
        assert whole.text.startswith(cut.text)

    def test_identity_is_the_text_s(self) -> None:
        assert Probe(0, 1, "a").id != Probe(0, 1, "b").id


class TestAsking:
    def test_greedy_one_by_one_and_recorded(self, tmp_path: Path) -> None:
        with Server(good) as server:
            extra = {"extra_body": {"temperature": 0.9, "ignore_eos": True, "top_k": 7}}
            result, found = probed(tmp_path, server, endpoint=extra)
        assert result.rundir.manifest["probes"] == {
            "asked": 4,
            "answered": 4,
            "max_tokens": 32,
            "interrupted": False,
            "reason": None,
        }
        assert [probe["text"] for probe in found] == [f"answer {n}" for n in range(4)]
        assert {probe["words"] for probe in found} == {8, 1000, 24, 96}
        assert all((p["input_tokens"], p["output_tokens"], p["finish_reason"]) == (20, 3, "stop") for p in found)
        assert len({probe["sha"] for probe in found}) == 4
        for body in server.probes:
            assert (body["temperature"], body["seed"], body["stream"], body["top_k"]) == (0, probing.SEED, False, 7)
            assert not {"ignore_eos", "cache_salt", "return_token_ids"} & set(body)

    def test_the_load_s_own_figures_know_nothing_of_them(self, tmp_path: Path) -> None:
        with Server(good) as server:
            result, _ = probed(tmp_path, server)
        assert result.outcomes == {"planned": 2, "ok": 2}

    def test_none_are_asked_unless_wished(self, tmp_path: Path) -> None:
        with Server(good) as server:
            result = execute(scenario(tmp_path, LOAD), server.url, tmp_path / "run", telemetry=False)
            assert server.probes == []
        assert "probes" not in result.rundir.manifest
        assert not (tmp_path / "run" / "probes.json").exists()

    def test_a_refusal_is_the_reason_and_two_of_them_are_enough(self, tmp_path: Path) -> None:
        refusal = json_response(400, {"error": {"message": "temperature is not supported"}})
        with Server(lambda n: refusal) as server:
            result, found = probed(tmp_path, server)
        account = result.rundir.manifest["probes"]
        assert (account["asked"], account["answered"]) == (4, 0)
        assert account["reason"].startswith("given up after 2 of 4: HTTP 400")
        assert "temperature is not supported" in account["reason"]
        assert [probe["text"] for probe in found] == [None, None]
        assert result.outcomes == {"planned": 2, "ok": 2}

    @pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"choices": []}', b'{"choices": [3]}', b'{"choices": [{}]}'])
    def test_an_answer_that_is_none(self, tmp_path: Path, body: bytes) -> None:
        odd = response(200, body, {"content-type": "application/json"})
        with Server(lambda n: odd if n == 1 else good(n)) as server:
            result, found = probed(tmp_path, server)
        assert result.rundir.manifest["probes"]["answered"] == 3
        assert found[1]["reason"] == result.rundir.manifest["probes"]["reason"] == "the answer is no completion"

    def test_half_a_surrogate_pair_is_written_as_unicode_writes_it(self, tmp_path: Path) -> None:
        body = b'{"choices": [{"message": {"content": "a \\ud83d"}, "finish_reason": "length"}]}'
        with Server(lambda n: response(200, body, {"content-type": "application/json"})) as server:
            _, (found,) = probed(tmp_path, server, probes=1)
        assert found["text"] == "a ?"

    def test_one_that_hangs_costs_its_time_out_and_nothing_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(probing, "TIMEOUT_S", 0.3)
        with Server(lambda n: [Hang()] if n == 1 else good(n)) as server:
            result, found = probed(tmp_path, server)
        assert "timed out" in found[1]["reason"]
        assert result.rundir.manifest["probes"]["answered"] == 3
        assert result.rundir.manifest["status"] == "complete"
        assert result.outcomes == {"planned": 2, "ok": 2}

    def test_a_secret_that_the_server_repeats_is_not_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CANARY_KEY", "sk-canary-0123456789abcdef")
        echo = json_response(200, EVENTS.whole("it is sk-canary-0123456789abcdef", usage(1, 1)))
        with Server(lambda n: echo) as server:
            run = scenario(tmp_path, LOAD)
            execute(run, server.url, tmp_path / "run", probes=1, telemetry=False, api_key_env="CANARY_KEY")
        assert "canary" not in (tmp_path / "run" / "probes.json").read_text()


class TestMargins:
    def test_of_a_chat(self) -> None:
        best = [{"token": "a", "logprob": -0.25}, {"token": "b", "logprob": -1.5}]
        told = {"content": [{"top_logprobs": best}, {"top_logprobs": best[:1]}, {"top_logprobs": None}]}
        assert probing.margins(told) == [1.25, None, None]

    def test_of_a_completion(self) -> None:
        assert probing.margins({"top_logprobs": [{"a": -2.0, "b": -0.5}, None, {"a": -1.0}]}) == [1.5, None, None]

    @pytest.mark.parametrize(
        "told",
        [
            *(None, {}, {"content": None}, {"top_logprobs": None}, {"content": [None]}, {"content": ["a"]}),
            *({"top_logprobs": [["a"]]}, {"top_logprobs": [{"a": "-1", "b": -2.0}]}),
        ],
    )
    def test_of_an_answer_without(self, told: Any) -> None:
        assert probing.margins(told) is None


class TestOfVllm:
    """What only vLLM is asked for: ids, margins, and a prefix cache of the run's own."""

    def serve(self, bodies: list[dict[str, Any]], takes_all: bool) -> Callable[[Any], Script]:
        def reply(seen: Any) -> Script:
            if seen.path == "/v1/models":
                return json_response(200, {"data": [{"id": "m", "owned_by": "vllm"}]})
            if seen.path != EVENTS.path:
                return json_response(404, {})
            body = seen.json()
            if body.get("stream"):
                return tokens(10)
            if "temperature" not in body:
                return json_response(200, EVENTS.whole("tok", usage(len(body["messages"][0]["content"].split()), 1)))
            bodies.append(body)
            if "logprobs" in body and not takes_all:
                return json_response(400, {"error": {"message": "logprobs: too many"}})
            answer = EVENTS.whole("tok", usage(9, 1))
            logprobs = {"content": [{"top_logprobs": [{"logprob": -0.1}, {"logprob": -0.4}]}]}
            answer["choices"][0] |= {"token_ids": [7], "logprobs": logprobs}
            return json_response(200, answer)

        return reply

    def test_ids_and_margins_are_kept(self, tmp_path: Path) -> None:
        bodies: list[dict[str, Any]] = []
        with ScriptedServer(self.serve(bodies, takes_all=True)) as server:
            result = execute(scenario(tmp_path, LOAD), server.url, tmp_path / "run", probes=2, telemetry=False)
        found = json.loads((tmp_path / "run" / "probes.json").read_text())
        assert [(probe["token_ids"], probe["margins"]) for probe in found] == [([7], [0.3])] * 2
        assert {(body["logprobs"], body["top_logprobs"], body["return_token_ids"]) for body in bodies} == {(1, 2, 1)}
        assert {body["cache_salt"] for body in bodies} == {str(result.rundir.manifest["plan"]["salt"])}

    def test_a_version_that_refuses_them_is_asked_without(self, tmp_path: Path) -> None:
        bodies: list[dict[str, Any]] = []
        with ScriptedServer(self.serve(bodies, takes_all=False)) as server:
            result = execute(scenario(tmp_path, LOAD), server.url, tmp_path / "run", probes=3, telemetry=False)
        assert result.rundir.manifest["probes"]["answered"] == 3
        assert ["logprobs" in body for body in bodies] == [True, False, False, False]


class TestSimulatedEngine:
    def texts(self, tmp_path: Path, name: str, **options: Any) -> list[dict[str, Any]]:
        load = {"constant": "20/s", "requests": 2, "drain": "5s"}
        result = execute(scenario(tmp_path, load), "sim", tmp_path / name, probes=2, telemetry=False, **options)
        assert result.rundir.manifest["probes"]["reason"] is None
        return json.loads((tmp_path / name / "probes.json").read_text())

    def test_repeats_itself_until_the_model_is_another(self, tmp_path: Path) -> None:
        first, again = self.texts(tmp_path, "a"), self.texts(tmp_path, "b")
        other = self.texts(tmp_path, "c", model="another")
        assert first == again
        assert all(len(probe["token_ids"]) == 32 for probe in first)
        assert [probe["prompt_id"] for probe in first] == [probe["prompt_id"] for probe in other]
        assert not {probe["sha"] for probe in first} & {probe["sha"] for probe in other}
