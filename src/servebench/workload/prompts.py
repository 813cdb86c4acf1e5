"""Making the prompt kit: how to write prompts of exact length for one server, found out before the load starts.

In this order: the server's own tokenizer over HTTP, a local tokenizer, prompts of token ids, and words calibrated by
a few one-token requests. Only the last of them makes the server generate anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import linear_regression
from typing import TYPE_CHECKING, Any, Protocol

from servebench.workload.kit import POOL_LIMIT, Method, PromptKit
from servebench.workload.tokenizers import Encoding, LocalTokenizer, ServerTokenizer, Tokenizer
from servebench.workload.words import COMMON_WORDS, LEAST, WordPool, find_words

if TYPE_CHECKING:
    import httpx

LONG_SAMPLE = 2048  # words of the text that proves a kit
PROBE_WORDS = (8, 64, 256)
PROBE_TIMEOUT = 60.0  # seconds; the first request to a cold server may compile
# Above the bytes and special tokens, below the end of any vocabulary in use.
SAFE_IDS = range(300, 300 + POOL_LIMIT)
TAKES_TOKEN_IDS = ("vllm", "sim")


class Endpoint(Protocol):
    """What this module needs to know of the server; `servebench.engine.attach.EndpointFacts` has it."""

    @property
    def url(self) -> str:
        """Base URL without `/v1` and without a trailing slash."""

    @property
    def engine(self) -> str:
        """Name of the engine, or "unknown"."""

    @property
    def has_tokenize(self) -> bool:
        """Whether `/tokenize` answers."""

    @property
    def max_model_len(self) -> int | None:
        """Longest context, in tokens."""


@dataclass(frozen=True, slots=True)
class Line:
    """Tokens as a linear function of words: `offset + slope × words`, through two measured points.

    `leading` is how many tokens at the front both texts share, None without ids.
    """

    offset: float
    slope: float
    leading: int | None = None

    @property
    def additive(self) -> bool:
        """Whether a word is exactly one token, and the rest a whole number of tokens that is not negative."""
        return self.slope == 1.0 and self.offset >= 0


def build_kit(
    client: httpx.Client,
    endpoint: Endpoint,
    api: str,
    model: str,
    tokenizer: str | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> PromptKit:
    """Find out how to write prompts for `model` at `endpoint`.

    Args:
        client: an open client, its headers set; at most 6 calls are made with it.
        endpoint: what is known of the server.
        api: "chat" or "completions".
        model: the name that the server knows the model by.
        tokenizer: name or folder of a local tokenizer, for servers that have none to offer.
        extra_body: the scenario's additions to each body; those that alter the chat template count here too.

    Raises:
        UsageError: `tokenizer` cannot be loaded.
    """
    served: PromptKit | None = None
    if endpoint.has_tokenize:
        server = ServerTokenizer(client, endpoint.url, model, extra_body)
        served = kit_from_tokenizer(server, api, "server_tokenizer", endpoint.max_model_len)
    if served is not None and served.exact:
        return served
    if tokenizer is not None and (local := _local_kit(tokenizer, api, endpoint.max_model_len)) is not None:
        return local
    if api == "completions" and endpoint.engine in TAKES_TOKEN_IDS:
        note = f"prompts are {len(SAFE_IDS)} random token ids, as no words of one token each were found"
        return PromptKit("token_ids", exact=True, overhead=0, token_ids=tuple(SAFE_IDS), note=note)
    return served or calibrate(client, endpoint.url, api, model, extra_body)


def kit_from_tokenizer(
    tokenizer: Tokenizer, api: str, method: Method, max_model_len: int | None = None
) -> PromptKit | None:
    """Make a kit with a tokenizer, in at most 6 calls; None if its answers are of no use.

    A text of the head alone and one of `LONG_SAMPLE` words are counted the way the API would render them; a kit is
    exact only if both have the planned length to the token.
    """
    pool = find_words(tokenizer)
    if pool is None:
        return None
    draft = PromptKit(method, exact=False, overhead=0, words=pool.words, head=pool.head)
    long = min(LONG_SAMPLE, max_model_len // 2) if max_model_len else LONG_SAMPLE
    line = _measure(tokenizer.encode_chat if api == "chat" else tokenizer.encode, draft, long)
    if line is not None and line.additive:
        return _additive_kit(draft, line, pool)
    if line is not None and line.offset >= 0:
        return _sloped_kit(draft, line)
    content = _measure(tokenizer.encode, draft, long) if api == "chat" else line
    return None if content is None else _content_kit(draft, content)


def _measure(count: Callable[[str], Encoding | None], draft: PromptKit, long: int) -> Line | None:
    """Put a line through the counts of the shortest prompt and of one with `long` words; None if they make no sense."""
    words = max(2, long)
    low = count(_sample(draft, 1))
    high = count(_sample(draft, words)) if low is not None else None
    if low is None or high is None or high.count <= low.count:
        return None
    slope = (high.count - low.count) / (words - 1)
    return Line(low.count - slope, slope, _common(low.ids, high.ids))


def _sample(draft: PromptKit, words: int) -> str:
    """A text of so many words of the pool."""
    text = draft.prompt(words, seed=words, salt=0)
    assert isinstance(text, str)
    return text


def _common(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Length of the common beginning of two id lists, None if one is empty."""
    if not a or not b:
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _additive_kit(draft: PromptKit, line: Line, pool: WordPool) -> PromptKit:
    """The good case: every word is one token, the overhead is a whole number."""
    note = "" if len(pool.words) >= LEAST else f"only {len(pool.words)} different words: prompts are much alike"
    return replace(draft, exact=True, overhead=round(line.offset), leading_tokens=line.leading, note=note)


def _sloped_kit(draft: PromptKit, line: Line) -> PromptKit:
    """Words that are not one token each: lengths are right on average only."""
    note = f"the tokenizer splits or joins the words ({line.slope:.3f} tokens a word): lengths are approximate"
    return replace(
        draft, overhead=round(line.offset), tokens_per_word=line.slope, leading_tokens=line.leading, note=note
    )


def _content_kit(draft: PromptKit, content: Line) -> PromptKit:
    """Counts that contradict themselves, such as a chat that is shorter than its own text: trust the words' only."""
    note = "the tokenizer's counts leave out or contradict the template: the words are counted, the overhead is unknown"
    return replace(draft, overhead=None, tokens_per_word=content.slope, note=note)


def _local_kit(name: str, api: str, max_model_len: int | None) -> PromptKit | None:
    """A kit from a local tokenizer, with a note that the server's may differ."""
    kit = kit_from_tokenizer(LocalTokenizer(name), api, "local_tokenizer", max_model_len)
    if kit is None:
        return None
    own = "counted by a local tokenizer: right if the server uses the same tokenizer and chat template"
    return replace(kit, note=f"{own}; {kit.note}" if kit.note else own)


def calibrate(
    client: httpx.Client, url: str, api: str, model: str, extra_body: Mapping[str, Any] | None = None
) -> PromptKit:
    """Fit tokens over words with one-token requests of `PROBE_WORDS` words; never exact.

    Where the server does not answer or does not count, a word is taken for a token and the note says so.
    """
    words = COMMON_WORDS[:POOL_LIMIT]
    draft = PromptKit("calibrated_words", exact=False, overhead=None, words=words, head=words[0])
    counts: list[int] = []
    for n in PROBE_WORDS:
        count = _probe(client, url, api, model, draft.prompt(n, seed=n, salt=0), extra_body)
        if isinstance(count, str):
            return replace(draft, note=f"one word is taken for one token, unchecked: {count}")
        counts.append(count)
    slope, intercept = linear_regression(PROBE_WORDS, counts)
    if slope <= 0:
        return replace(draft, note="one word is taken for one token: the server's counts do not grow with the prompt")
    residual = max(abs(c - intercept - slope * n) for n, c in zip(PROBE_WORDS, counts, strict=True))
    note = f"{slope:.3f} tokens a word, fitted over {len(counts)} probe requests (largest error {residual:.1f} tokens)"
    overhead = max(0, round(intercept))
    return replace(draft, overhead=overhead, tokens_per_word=slope, residual=round(residual, 3), note=note)


def _probe(
    client: httpx.Client, url: str, api: str, model: str, prompt: str | list[int], extra: Mapping[str, Any] | None
) -> int | str:
    """Send one request for a single token; return the server's `usage.prompt_tokens`, or what went wrong."""
    import httpx

    chat = api == "chat"
    content = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body = {"model": model} | content | dict(extra or {}) | {"max_tokens": 1, "stream": False}
    try:
        response = client.post(url.rstrip("/") + path, json=body, timeout=PROBE_TIMEOUT)
        if response.status_code != 200:
            return f"a probe request was answered with HTTP {response.status_code}"
        count = response.json()["usage"]["prompt_tokens"]
    except httpx.HTTPError as error:
        return f"a probe request failed ({type(error).__name__})"
    except (ValueError, KeyError, TypeError):
        count = None
    return count if type(count) is int and count > 0 else "the server's answer does not tell usage.prompt_tokens"
