"""The dialects: what is sent is plain OpenAI, and nothing that nobody asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servebench.wire.dialects import Chat, Completions, Prompt, get_dialect

APIS = pytest.mark.parametrize("api", ["chat", "completions"])


def body(api: str, prompt: Prompt = "hi", *, stream: bool = True, extras: dict[str, Any] | None = None) -> Any:
    return json.loads(get_dialect(api).body("a/model", prompt, 7, stream, extras or {}))


@pytest.mark.parametrize(
    ("api", "kind", "path"), [("chat", Chat, "/v1/chat/completions"), ("completions", Completions, "/v1/completions")]
)
def test_each_api_has_its_dialect(api: str, kind: type, path: str) -> None:
    dialect = get_dialect(api)
    assert type(dialect) is kind
    assert (dialect.name, dialect.path) == (api, path)


@pytest.mark.parametrize("api", ["", "Chat", "responses"])
def test_another_api_is_an_error(api: str) -> None:
    with pytest.raises(KeyError):
        get_dialect(api)


def test_the_whole_body_of_a_chat() -> None:
    assert body("chat") == {
        "model": "a/model",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize("prompt", ["hi", [1, 2, 3]])
def test_the_whole_body_of_a_completion(prompt: Prompt) -> None:
    assert body("completions", prompt) == {
        "model": "a/model",
        "prompt": prompt,
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@APIS
def test_options_of_a_stream_are_only_for_a_stream(api: str) -> None:
    whole = body(api, stream=False)
    assert whole["stream"] is False
    assert "stream_options" not in whole


@APIS
def test_extras_are_added_and_have_the_last_word(api: str) -> None:
    got = body(api, extras={"temperature": 0, "max_tokens": 9, "stream_options": {"continuous_usage_stats": True}})
    assert got["temperature"] == 0
    assert got["max_tokens"] == 9
    assert got["stream_options"] == {"continuous_usage_stats": True}
    assert set(got) == set(body(api)) | {"temperature"}


@APIS
@pytest.mark.parametrize("text", ["", 'quotes " and \\', "line\nbreak\0", "é漢😀\u2028"])
def test_any_text_survives(api: str, text: str) -> None:
    got = body(api, text)
    assert (got["messages"][0]["content"] if api == "chat" else got["prompt"]) == text


def test_a_chat_has_no_place_for_token_ids() -> None:
    with pytest.raises(TypeError, match="token ids"):
        body("chat", [1, 2])
