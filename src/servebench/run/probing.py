"""Greedy probes: fixed questions, asked one by one when the load is over, whose answers tell two servers apart.

The texts have no salt and come from words that everybody has, so that all runs of all arms are asked the same. Every
group of four has one long text, which a server with a smaller token budget must cut into several prefills.

Shape of probes.json, one entry a probe that was asked::

    {"prompt_id": "p02-1500-3f9a12c0",          # number, words, and the beginning of the text's sha256
     "words": 1500, "input_tokens": 1523 | null, "output_tokens": 32 | null, "finish_reason": "length" | null,
     "text": "that wife ..." | null, "token_ids": [17, 4, ...] | null,
     "sha": "9b1f..." | null,                   # sha256 of the text
     "margins": [1.73, 0.02, ...] | null,       # of each token: how much likelier than the second best (log p), if told
     "reason": str | null}                      # why there is no answer
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256, shake_128
from typing import TYPE_CHECKING, Any

from servebench.record.redaction import without
from servebench.workload.words import COMMON_WORDS

if TYPE_CHECKING:
    import httpx

    from servebench.dispatch.conductor import Interrupts
    from servebench.engine.attach import EndpointFacts
    from servebench.record.rundir import RunDir
    from servebench.run.options import RunOptions
    from servebench.scenario.schema import Scenario

FILE = "probes.json"
MAX_TOKENS = 32
SEED = 20_240_601
TIMEOUT_S = 60.0  # for one answer: greedy and alone, so that longer means that something hangs
GIVE_UP = 2  # probes without an answer, one after the other, after which the rest is not asked
# In words. Any four in a row have a long one.
LENGTHS = (8, 1500, 24, 96, 16, 2000, 48, 192, 12, 2500, 64, 256, 32, 3000, 128, 384)
MOST = len(LENGTHS)
SHARE_OF_CONTEXT = 3  # a word may be more than one token, and the answer needs room, too
PARTS = ("reasoning", "reasoning_content", "content", "text")  # of a message, and the text of a completion
LEFT_OUT = ("stream", "stream_options", "ignore_eos", "min_tokens", "max_tokens", "max_completion_tokens", "n")
_ASKS = ("Repeat the following words in the same order: ", "Name the first ten words of this list: ")

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Probe:
    """A fixed question.

    Attributes:
        number: its place in the set.
        words: length of the text, the question before it not counted.
        text: what is asked.
    """

    number: int
    words: int
    text: str

    @property
    def id(self) -> str:
        """The same for the same text alone."""
        return f"p{self.number:02d}-{self.words}-{sha256(self.text.encode()).hexdigest()[:8]}"


def probe_set(count: int, max_model_len: int | None) -> tuple[Probe, ...]:
    """The first `count` probes (at most `MOST`), none longer in words than a third of the context."""
    most = max(1, max_model_len // SHARE_OF_CONTEXT) if max_model_len else max(LENGTHS)
    return tuple(_probe(number, min(words, most)) for number, words in enumerate(LENGTHS[:count]))


def _probe(number: int, words: int) -> Probe:
    stream = shake_128(f"servebench probe {number}".encode()).digest(2 * words)
    picks = (int.from_bytes(stream[i : i + 2]) % len(COMMON_WORDS) for i in range(0, 2 * words, 2))
    return Probe(number, words, _ASKS[number % 2] + " ".join(COMMON_WORDS[pick] for pick in picks))


def ask_probes(
    scenario: Scenario, options: RunOptions, rundir: RunDir, facts: EndpointFacts, interrupts: Interrupts
) -> dict[str, Any]:
    """Ask `options.probes` of them and write probes.json; whatever happens is a reason, never an error.

    Returns:
        The manifest's `probes`: {"asked", "answered", "max_tokens", "interrupted", "reason": str | null}.
    """
    probes = probe_set(options.probes, facts.max_model_len)
    answers: list[Answer] = []
    interrupted = False
    try:
        with interrupts.raising():
            _ask(scenario, options, rundir, facts, probes, answers)
    except KeyboardInterrupt:
        interrupted = True
    (rundir.path / FILE).write_text(without(json.dumps(answers, indent=1, ensure_ascii=False), rundir.secrets), "utf-8")
    return _account(len(probes), answers, interrupted)


def _ask(
    scenario: Scenario,
    options: RunOptions,
    rundir: RunDir,
    facts: EndpointFacts,
    probes: Sequence[Probe],
    answers: list[Answer],
) -> None:
    """Append an answer for each probe, until `GIVE_UP` of them in a row had none."""
    from servebench.run.asking import client_for

    extras, plain = _extras(scenario, facts, str(rundir.manifest["plan"]["salt"]))
    with client_for(scenario, options, facts.url, TIMEOUT_S) as client:
        for probe in probes:
            answer = _answer(client, facts, probe, extras)
            if extras != plain and (answer["reason"] or "").startswith("HTTP 4"):
                extras = plain  # this version does not take all that we know of its kind
                answer = _answer(client, facts, probe, extras)
            answers.append(answer)
            if len(answers) >= GIVE_UP and all(answer["reason"] for answer in answers[-GIVE_UP:]):
                return


def _extras(scenario: Scenario, facts: EndpointFacts, salt: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What each body has beyond its text: all that tells more, where the engine takes it, and what greedy needs."""
    wishes = {key: value for key, value in scenario.endpoint.extra_body.items() if key not in LEFT_OUT}
    greedy = wishes | {"temperature": 0, "seed": SEED}
    more: dict[str, Any] = {}
    if facts.engine in ("vllm", "sim"):
        more["return_token_ids"] = True
    if facts.engine == "vllm":
        # A server that stays up would else find the long texts of the run before in its cache.
        more["cache_salt"] = salt
        more |= {"logprobs": True, "top_logprobs": 2} if facts.api == "chat" else {"logprobs": 2}
    return greedy | more, greedy


def _answer(client: httpx.Client, facts: EndpointFacts, probe: Probe, extras: dict[str, Any]) -> Answer:
    from servebench.engine.reach import send
    from servebench.errors import EngineError
    from servebench.wire.dialects import get_dialect

    dialect = get_dialect(facts.api)
    body = json.loads(dialect.body(facts.model, probe.text, MAX_TOKENS, False, extras))
    try:
        response = send(client, facts.url, "POST", dialect.path, body)
    except EngineError as error:
        return _record(probe, reason=str(error))
    if response.status_code != 200:
        return _record(probe, reason=f"HTTP {response.status_code}: {' '.join(response.text.split())[:200]}")
    return _read(probe, response)


def _read(probe: Probe, response: httpx.Response) -> Answer:
    """What a whole answer of either API says; a text that is not there is a reason."""
    try:
        body = response.json()
        choice, usage = body["choices"][0], dict(body.get("usage") or {})
        said = choice.get("message") or choice
        parts = [said[key] for key in PARTS if said.get(key) is not None]
        text = "".join(parts).encode("utf-8", "replace").decode()  # half a surrogate pair fits into no file
    except (ValueError, LookupError, TypeError, AttributeError):
        parts, text = [], ""
    if not parts:
        return _record(probe, reason="the answer is no completion")
    return _record(
        probe,
        input_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
        finish_reason=choice.get("finish_reason"),
        text=text,
        token_ids=choice.get("token_ids"),
        sha=sha256(text.encode()).hexdigest(),
        margins=margins(choice.get("logprobs")),
    )


def margins(logprobs: Any) -> list[float | None] | None:
    """How much likelier each token was than the second best, as a difference of log p, from either API's `logprobs`.

    None where there are none, or none in a form of these APIs; of a token that has no second, None.
    """
    if not isinstance(logprobs, dict):
        return None
    try:
        if isinstance(places := logprobs.get("content"), list):
            return [_margin([each.get("logprob") for each in place.get("top_logprobs") or []]) for place in places]
        if isinstance(places := logprobs.get("top_logprobs"), list):
            return [_margin(list((place or {}).values())) for place in places]
    except (AttributeError, TypeError):
        return None
    return None


def _margin(found: Sequence[float | None]) -> float | None:
    known = sorted((value for value in found if value is not None), reverse=True)
    return round(known[0] - known[1], 6) if len(known) > 1 else None


def _record(probe: Probe, **known: Any) -> Answer:
    keys = ("input_tokens", "output_tokens", "finish_reason", "text", "token_ids", "sha", "margins", "reason")
    return {"prompt_id": probe.id, "words": probe.words, **{key: known.get(key) for key in keys}}


def _account(asked: int, answers: Sequence[Answer], interrupted: bool) -> dict[str, Any]:
    failed = [answer["reason"] for answer in answers if answer["reason"]]
    reason = failed[0] if failed else None
    if interrupted:
        reason = "interrupted before all probes were answered"
    elif len(answers) < asked:
        reason = f"given up after {len(answers)} of {asked}: {reason}"
    return {
        "asked": asked,
        "answered": len(answers) - len(failed),
        "max_tokens": MAX_TOKENS,
        "interrupted": interrupted,
        "reason": reason,
    }
