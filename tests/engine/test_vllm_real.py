"""A real vLLM with the built-in model: what servebench rests on, checked where it may change."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from servebench.engine.attach import discover
from servebench.engine.locate import find_vllm_python
from servebench.engine.tiny_model import ensure_tiny_model
from servebench.engine.vllm import VllmServer, VllmSettings, launch_vllm
from servebench.errors import EngineError

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cache() -> Iterator[None]:
    """The cache that the tests of a real vLLM share; set before the fixtures of a single test would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(REPOSITORY / ".cache" / "tests"))
        yield


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return find_vllm_python()
    except EngineError as error:
        if os.environ.get("SERVEBENCH_REQUIRE_VLLM") == "1":
            raise
        pytest.skip(f"no vLLM: {error}")


@pytest.fixture(scope="module")
def server(python: Path, cache: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    settings = VllmSettings(flags={"max-model-len": 8192, "max-num-batched-tokens": 2048})
    with launch_vllm(settings, python, tmp_path_factory.mktemp("vllm") / "server.log") as running:
        yield running


def post(url: str, path: str, **document: Any) -> bytes:
    request = urllib.request.Request(
        f"{url}{path}", json.dumps(document).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        body: bytes = response.read()
        return body


def events(body: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line]
    assert lines.pop() == b"[DONE]"
    return [json.loads(line) for line in lines]


def chat(server: VllmServer, tokens: int, **more: Any) -> list[dict[str, Any]]:
    message = {"role": "user", "content": "Tell me a story."}
    body = {"model": server.model, "messages": [message], "max_tokens": tokens, "stream": True}
    return events(post(server.url, "/v1/chat/completions", **body, **more))


def test_it_serves_the_tiny_model_and_says_so(server: VllmServer) -> None:
    assert (server.model, server.random_weights) == ("tiny-random", True)
    assert server.version is not None
    assert 0 < server.cold_start["ready_s"] <= server.cold_start["first_token_s"] < 600


def test_the_endpoint_tells_what_servebench_needs(server: VllmServer) -> None:
    facts = discover(server.url, "chat")
    assert (facts.model, facts.engine, facts.version) == ("tiny-random", "vllm", server.version)
    assert (facts.random_weights, facts.has_tokenize, facts.max_model_len) == (True, True, 8192)


def test_a_plain_request_gets_as_many_tokens_as_it_asks_for(server: VllmServer) -> None:
    first, *rest, last = chat(server, 200, stream_options={"include_usage": True})
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["usage"]["completion_tokens"] == 200
    texts = [event["choices"][0]["delta"]["content"] for event in rest]
    assert 100 <= len(texts) <= 200  # fewer than tokens where vLLM's front end was too busy to keep them apart
    assert all(text and text.isascii() and text.isprintable() for text in texts)
    assert [event["choices"][0]["finish_reason"] for event in rest] == [None] * (len(rest) - 1) + ["length"]


def test_usage_can_come_with_every_chunk(server: VllmServer) -> None:
    got = chat(server, 9, stream_options={"include_usage": True, "continuous_usage_stats": True}, ignore_eos=True)
    counts = [event["usage"]["completion_tokens"] for event in got]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-2:] == [9, 9]
    assert len(set(counts)) == len(counts) - 1  # every chunk but the last, which has no choice, brought tokens


def test_text_survives_the_tokenizer(server: VllmServer) -> None:
    text = "The quick brown fox, äöü 漢字 🙂\n\ttabs"
    tokens = json.loads(post(server.url, "/tokenize", prompt=text))["tokens"]
    assert json.loads(post(server.url, "/detokenize", tokens=tokens))["prompt"] == text


def test_the_tokenizer_compresses_english_as_one_of_its_size_should(server: VllmServer) -> None:
    text = "Return the number of items that were added to the list since it was created by the caller."
    assert len(text.split()) <= json.loads(post(server.url, "/tokenize", prompt=text))["count"] < len(text) / 3


def test_the_chat_template_adds_four_tokens(server: VllmServer) -> None:
    plain = json.loads(post(server.url, "/tokenize", prompt="Hello there"))["count"]
    messages = [{"role": "user", "content": "Hello there"}]
    assert json.loads(post(server.url, "/tokenize", messages=messages))["count"] == plain + 4


def test_token_ids_are_prompts_of_exact_length(server: VllmServer) -> None:
    body = {"model": server.model, "prompt": list(range(300, 400)), "max_tokens": 3, "stream": True}
    *_, last = events(post(server.url, "/v1/completions", **body, stream_options={"include_usage": True}))
    assert last["usage"] == {"prompt_tokens": 100, "total_tokens": 103, "completion_tokens": 3}


def test_tokens_arrive_one_by_one_when_several_requests_run(server: VllmServer) -> None:
    from concurrent.futures import ThreadPoolExecutor
    from time import monotonic

    def arrivals(_: int) -> list[float]:
        body = {"model": server.model, "prompt": "Once upon a time", "max_tokens": 60, "stream": True}
        request = urllib.request.Request(
            f"{server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return [monotonic() for line in response if line.startswith(b"data: {")]

    with ThreadPoolExecutor(4) as pool:
        for times in pool.map(arrivals, range(4)):
            half_way = (times[len(times) // 2] - times[0]) / (times[-1] - times[0])
            assert 0.2 < half_way < 0.8  # not all at once at the end


def test_an_unknown_flag_is_answered_with_vllms_nearest(python: Path, cache: None, tmp_path: Path) -> None:
    with pytest.raises(EngineError) as error:
        launch_vllm(VllmSettings(flags={"max-num-batched-tokns": 1}), python, tmp_path / "log")
    said = 'this vLLM has no flag "max-num-batched-tokns" (did you mean "max-num-batched-tokens"?)'
    assert str(error.value) == said


def test_the_model_is_the_same_wherever_it_is_made(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ensure_tiny_model(python)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    again = ensure_tiny_model(python)
    assert made.name == again.name
    for name in ("tokenizer.json", "model.safetensors", "config.json"):
        assert (made / name).read_bytes() == (again / name).read_bytes()
