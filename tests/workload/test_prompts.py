"""build_kit against servers with all manner of tokenizers; counts are checked by the tokenizers of this file."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from servebench.errors import UsageError
from servebench.testing import RequestSeen, ScriptedServer, json_response, refusing_port, response
from servebench.workload.kit import PromptKit
from servebench.workload.prompts import build_kit
from servebench.workload.words import COMMON_WORDS, LEAST

LENGTHS = [*range(1, 40), 63, 64, 65, 200, 511, 512, 1999, 2000]
SPECIAL = re.compile(r"(<\|[a-z]+\|>)")
PIECES = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")  # how GPT-2 cuts text, for ASCII


@dataclass
class Bpe:
    """A byte-level tokenizer: known pieces are one token, the others are cut greedily, at worst into letters."""

    known: tuple[str, ...]
    bos: bool = False
    opening: str = "<|user|>\n"
    closing: str = "<|end|><|assistant|>\n"
    vocabulary: list[str] = field(init=False)

    def __post_init__(self) -> None:
        specials = ["<|begin|>", "<|user|>", "<|end|>", "<|assistant|>"]
        self.vocabulary = [*specials, *map(chr, range(256)), *self.known]
        self.numbers = {piece: i for i, piece in enumerate(self.vocabulary)}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in SPECIAL.split(text):
            pieces = [part] if SPECIAL.fullmatch(part) else PIECES.findall(part)
            for piece in pieces:
                ids += self._cut(piece)
        return ids

    def _cut(self, piece: str) -> list[int]:
        ids = []
        while piece:
            size = next(n for n in range(len(piece), 0, -1) if piece[:n] in self.numbers)
            ids.append(self.numbers[piece[:size]])
            piece = piece[size:]
        return ids

    def completion(self, text: str) -> list[int]:
        return self.encode(("<|begin|>" if self.bos else "") + text)

    def chat(self, text: str) -> list[int]:
        return self.completion(self.opening + text.strip() + self.closing)

    def decode(self, ids: list[int]) -> str:
        return "".join(self.vocabulary[i] for i in ids)


class Words(Bpe):
    """A token a word between white space, as the simulated engine counts; newlines are no tokens."""

    def encode(self, text: str) -> list[int]:
        text = SPECIAL.sub(r" \1 ", text)
        return [hash(word) % 2**31 for word in text.split()]


Behaviour = Callable[[str, Any], Any]


def answering(tokenizer: Bpe, *, ids: bool = True, detokenize: bool = True) -> Behaviour:
    """A server with /tokenize as vLLM has it, whose completions count the prompt."""

    def behave(path: str, body: Any) -> Any:
        if path == "/tokenize":
            tokens = tokenizer.chat(content(body)) if "messages" in body else tokenizer.completion(body["prompt"])
            return {"count": len(tokens), "max_model_len": 32768} | ({"tokens": tokens} if ids else {})
        if path == "/detokenize" and detokenize:
            return {"prompt": tokenizer.decode(body["tokens"])}
        if path.startswith("/v1/"):
            tokens = tokenizer.chat(content(body)) if "messages" in body else tokenizer.completion(body["prompt"])
            return {"usage": {"prompt_tokens": len(tokens)}}
        return 404

    return behave


def content(body: Any) -> str:
    text = body["messages"][0]["content"]
    assert isinstance(text, str)
    return text


@contextmanager
def serving(behave: Behaviour) -> Iterator[ScriptedServer]:
    def script(request: RequestSeen) -> Any:
        answer = behave(request.path, request.json())
        if isinstance(answer, int):
            return json_response(answer, {"detail": "no"})
        if isinstance(answer, bytes):
            return response(200, answer, {"content-type": "text/html"})
        return json_response(200, answer)

    with ScriptedServer(script) as server:
        yield server
    assert server.errors == []


@dataclass
class Built:
    kit: PromptKit
    paths: list[str]
    bodies: list[Any]


def build(
    behave: Behaviour,
    api: str,
    *,
    engine: str = "vllm",
    has_tokenize: bool = True,
    max_model_len: int | None = 32768,
    tokenizer: str | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> Built:
    with serving(behave) as server, httpx.Client(trust_env=False) as client:
        facts = SimpleNamespace(url=server.url, engine=engine, has_tokenize=has_tokenize, max_model_len=max_model_len)
        kit = build_kit(client, facts, api, "m", tokenizer, extra_body)
    return Built(kit, [r.path for r in server.requests], [r.json() for r in server.requests])


def counted(tokenizer: Bpe, api: str, kit: PromptKit, tokens: int, group: int = -1) -> int:
    prompt = kit.prompt(tokens, seed=tokens * 31, salt=12, prefix_group=group, prefix_tokens=64)
    assert isinstance(prompt, str)
    return len(tokenizer.chat(prompt) if api == "chat" else tokenizer.completion(prompt))


def spaced(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f" {word}" for word in words)


def odd_words(n: int) -> tuple[str, ...]:
    """Words of a small vocabulary that no list of common words has."""
    return tuple(f"{a}{b}{c}x" for a in "bcdfghjk" for b in "aeiou" for c in "lmnprstvwz")[:n]


RICH = Bpe((*spaced(COMMON_WORDS), *COMMON_WORDS))
SPLITS_SOME = Bpe((*spaced(COMMON_WORDS[::2]), *COMMON_WORDS[1::4]))
WITH_BOS = Bpe((*spaced(COMMON_WORDS), "that"), bos=True)
BARE_WORDS_SPLIT = Bpe(spaced(COMMON_WORDS))
PLAIN_TEMPLATE = Bpe((*spaced(COMMON_WORDS), *COMMON_WORDS), opening="[INST] ", closing=" [/INST]")
TINY = Bpe((*spaced(odd_words(300)), *spaced(COMMON_WORDS[:20]), "bal", "that"))
EXACT = {
    "rich": RICH,
    "splits some": SPLITS_SOME,
    "BOS": WITH_BOS,
    "bare words split": BARE_WORDS_SPLIT,
    "plain template": PLAIN_TEMPLATE,
    "tiny": TINY,
    "a token a word": Words(()),
}


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize("name", EXACT)
def test_is_exact_by_the_servers_count(name: str, api: str) -> None:
    tokenizer = EXACT[name]
    built = build(answering(tokenizer), api)
    kit = built.kit
    assert (kit.method, kit.exact, kit.note) == ("server_tokenizer", True, "")
    assert len(built.paths) <= 6
    assert not any(path.startswith("/v1/") for path in built.paths)
    for tokens in LENGTHS:
        for group in (-1, 4):
            assert counted(tokenizer, api, kit, tokens, group) == max(tokens, kit.minimum)


@pytest.mark.parametrize(("name", "chat", "completions"), [("rich", 5, 0), ("BOS", 6, 1), ("tiny", 5, 0)])
def test_the_overhead_is_the_templates(name: str, chat: int, completions: int) -> None:
    behave = answering(EXACT[name])
    assert build(behave, "chat").kit.overhead == chat
    assert build(behave, "completions").kit.overhead == completions


def test_a_head_of_several_tokens_counts_as_overhead() -> None:
    kit = build(answering(BARE_WORDS_SPLIT), "completions").kit
    assert kit.overhead == len(BARE_WORDS_SPLIT.completion(kit.head)) - 1 > 0


def test_leading_tokens_are_what_all_prompts_share() -> None:
    kit = build(answering(WITH_BOS), "chat").kit
    first, second = (WITH_BOS.chat(str(kit.prompt(99, seed, 1))) for seed in (1, 2))
    assert kit.leading_tokens is not None
    assert first[: kit.leading_tokens] == second[: kit.leading_tokens]
    assert first[kit.leading_tokens] != second[kit.leading_tokens]


def test_a_small_vocabulary_is_searched_through_detokenize() -> None:
    built = build(answering(TINY), "chat")
    assert built.paths.count("/detokenize") == 1
    assert len(built.kit.words) >= 200
    assert set(odd_words(180)) <= set(built.kit.words)


def test_a_large_vocabulary_needs_no_detokenize() -> None:
    assert build(answering(RICH), "chat").paths == ["/tokenize"] * 3


def test_without_detokenize_the_common_words_of_one_token_do() -> None:
    built = build(answering(TINY, detokenize=False), "completions")
    assert built.kit.exact
    assert set(built.kit.words) == set(COMMON_WORDS[:20])
    assert len(built.kit.words) >= LEAST
    assert counted(TINY, "completions", built.kit, 700) == 700


def test_too_few_words_are_told() -> None:
    poor = Bpe((" that", " with"))
    kit = build(answering(poor, detokenize=False), "completions").kit
    assert kit.exact
    assert kit.note == "only 2 different words: prompts are much alike"


def test_words_of_one_unknown_token_are_not_taken_for_many() -> None:
    class Unknowing(Bpe):
        def encode(self, text: str) -> list[int]:
            known = set(spaced(COMMON_WORDS[:30]))
            return [self.numbers[p] if p in known else 9 if p != "\n" else 10 for p in PIECES.findall(text)]

    kit = build(answering(Unknowing(spaced(COMMON_WORDS[:30]))), "completions").kit
    assert len(kit.words) == 31


def test_counts_without_ids_are_enough_when_they_add_up() -> None:
    kit = build(answering(RICH, ids=False), "chat").kit
    assert (kit.exact, kit.overhead, kit.leading_tokens) == (True, 5, None)
    assert counted(RICH, "chat", kit, 800) == 800


def test_one_split_word_in_two_hundred_is_not_exact() -> None:
    kit = build(answering(Bpe((*spaced(COMMON_WORDS[1:]), *COMMON_WORDS)), ids=False), "chat").kit
    assert not kit.exact
    assert 1.0 < kit.tokens_per_word < 1.05


def test_a_list_of_ids_that_is_cut_short_is_not_used() -> None:
    def behave(path: str, body: Any) -> Any:
        answer = answering(RICH)(path, body)
        return answer | {"tokens": answer["tokens"][:1]} if path == "/tokenize" else answer

    kit = build(behave, "chat").kit
    assert (kit.exact, kit.overhead, kit.leading_tokens) == (True, 5, None)


def test_counts_that_do_not_add_up_give_lengths_right_on_average() -> None:
    kit = build(answering(SPLITS_SOME, ids=False), "chat").kit
    assert (kit.method, kit.exact) == ("server_tokenizer", False)
    assert "lengths are approximate" in kit.note
    total = sum(counted(SPLITS_SOME, "chat", kit, n) for n in range(900, 920))
    assert total == pytest.approx(sum(range(900, 920)), rel=0.03)


def test_the_samples_fit_a_short_context() -> None:
    built = build(answering(RICH), "completions", max_model_len=512)
    samples = [len(RICH.completion(body["prompt"])) for body in built.bodies[1:]]
    assert max(samples) == 256
    assert built.kit.exact


def test_the_scenarios_template_switches_reach_tokenize() -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "temperature": 0}
    built = build(answering(RICH), "chat", extra_body=extra)
    chats = [body for body in built.bodies if "messages" in body]
    assert chats
    assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in chats)
    assert all(body["add_generation_prompt"] is True for body in chats)
    assert not any("temperature" in body for body in built.bodies)


def blind_to_messages(path: str, body: Any) -> Any:
    """Counts the spaces of `prompt`, and nothing for messages."""
    if path == "/tokenize":
        count = body.get("prompt", "").count(" ")
        return {"count": count, "tokens": [1 + i % 1000 for i in range(count)]}
    return 500


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_contradictory_counts_make_no_requests_and_are_said(api: str) -> None:
    built = build(blind_to_messages, api, engine="unknown")
    assert set(built.paths) == {"/tokenize"}
    assert len(built.paths) <= 6
    assert (built.kit.exact, built.kit.overhead, built.kit.tokens_per_word) == (False, None, 1.0)
    assert "the overhead is unknown" in built.kit.note
    assert len(str(built.kit.prompt(300, 1, 1)).split()) == 300


BROKEN: dict[str, Any] = {
    "404": 404,
    "405": 405,
    "HTML": b"<html>hello</html>",
    "a list": [1, 2],
    "no count": {"tokens": []},
    "a count of text": {"count": "9"},
    "zero": {"count": 0, "tokens": []},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_tokenize_leads_to_probe_requests(name: str) -> None:
    def behave(path: str, body: Any) -> Any:
        if path == "/tokenize":
            return BROKEN[name]
        return {"usage": {"prompt_tokens": 11 + 2 * len(content(body).split())}}

    built = build(behave, "chat", engine="unknown")
    assert built.paths == ["/tokenize", *["/v1/chat/completions"] * 3]
    kit = built.kit
    assert (kit.method, kit.exact, kit.overhead) == ("calibrated_words", False, 11)
    assert kit.tokens_per_word == pytest.approx(2.0)
    assert kit.residual == pytest.approx(0.0, abs=1e-3)
    assert len(str(kit.prompt(1011, 1, 1)).split()) == 500


def test_probe_requests_ask_for_one_token_and_no_stream() -> None:
    built = build(answering(RICH), "completions", engine="unknown", has_tokenize=False, extra_body={"max_tokens": 99})
    assert built.paths == ["/v1/completions"] * 3
    assert all((body["max_tokens"], body["stream"]) == (1, False) for body in built.bodies)
    assert not built.kit.exact
    assert "largest error 0.0 tokens" in built.kit.note


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (503, "answered with HTTP 503"),
        ({"choices": []}, "does not tell usage.prompt_tokens"),
        ({"usage": None}, "does not tell usage.prompt_tokens"),
        ({"usage": {"prompt_tokens": 0}}, "does not tell usage.prompt_tokens"),
        (b"<html>", "does not tell usage.prompt_tokens"),
        ({"usage": {"prompt_tokens": 5}}, "do not grow with the prompt"),
    ],
)
def test_without_counts_a_word_is_a_token_and_the_note_says_so(answer: Any, reason: str) -> None:
    kit = build(lambda path, body: answer, "chat", engine="unknown", has_tokenize=False).kit
    assert (kit.method, kit.exact, kit.overhead, kit.tokens_per_word) == ("calibrated_words", False, None, 1.0)
    assert "one word is taken for one token" in kit.note
    assert reason in kit.note


def test_a_server_that_goes_away_is_a_note_too() -> None:
    with refusing_port() as port, httpx.Client(trust_env=False) as client:
        url = f"http://127.0.0.1:{port}"
        facts = SimpleNamespace(url=url, engine="unknown", has_tokenize=True, max_model_len=None)
        kit = build_kit(client, facts, "chat", "m")
    assert "a probe request failed (ConnectError)" in kit.note


def test_token_ids_where_the_server_is_known_to_take_them() -> None:
    built = build(lambda path, body: 404, "completions", engine="vllm")
    assert built.paths == ["/tokenize"]
    assert (built.kit.method, built.kit.exact, built.kit.overhead) == ("token_ids", True, 0)
    ids = built.kit.prompt(123, 1, 1)
    assert isinstance(ids, list)
    assert len(ids) == 123
    assert min(ids) > 256
    assert max(ids) < 1000


def fake_transformers(monkeypatch: pytest.MonkeyPatch, tokenizer: Bpe, template: str | None = "t") -> None:
    class Loaded:
        chat_template = template

        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": tokenizer.completion(text)}

        def apply_chat_template(self, messages: Any, *, add_generation_prompt: bool, return_dict: bool) -> list[int]:
            assert (add_generation_prompt, return_dict) == (True, False)
            if template == "broken":
                raise ValueError("roles must alternate")
            return tokenizer.chat(messages[0]["content"])

        def decode(self, ids: list[int]) -> str:
            return tokenizer.decode(ids)

    def from_pretrained(name: str) -> Loaded:
        if name != "good":
            raise OSError(f"{name} is no tokenizer\nand a page of advice")
        return Loaded()

    module = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=from_pretrained))
    monkeypatch.setitem(sys.modules, "transformers", module)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_local_tokenizer_where_the_server_has_none(monkeypatch: pytest.MonkeyPatch, api: str) -> None:
    fake_transformers(monkeypatch, TINY)
    built = build(lambda path, body: 404, api, has_tokenize=False, tokenizer="good")
    assert built.paths == []
    assert (built.kit.method, built.kit.exact) == ("local_tokenizer", True)
    assert "local tokenizer" in built.kit.note
    assert [counted(TINY, api, built.kit, n) for n in (6, 100, 2000)] == [6, 100, 2000]


@pytest.mark.parametrize("template", [None, "broken"])
def test_a_local_tokenizer_without_a_usable_template(monkeypatch: pytest.MonkeyPatch, template: str | None) -> None:
    fake_transformers(monkeypatch, RICH, template)
    kit = build(lambda path, body: 404, "chat", has_tokenize=False, tokenizer="good").kit
    assert (kit.method, kit.exact, kit.overhead) == ("local_tokenizer", False, None)
    assert "the overhead is unknown" in kit.note


def test_the_servers_exact_count_goes_before_a_local_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_transformers(monkeypatch, TINY)
    assert build(answering(RICH), "chat", tokenizer="good").kit.method == "server_tokenizer"
    assert build(blind_to_messages, "chat", tokenizer="good").kit.method == "local_tokenizer"


def test_a_tokenizer_that_cannot_be_loaded_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_transformers(monkeypatch, TINY)
    with pytest.raises(UsageError) as caught:
        build(lambda path, body: 404, "chat", tokenizer="bad")
    assert str(caught.value) == "--tokenizer bad: cannot be loaded: bad is no tokenizer"


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match=r"pip install 'servebench\[tokenizer\]'"):
        build(lambda path, body: 404, "chat", tokenizer="good")
