"""`load.input_tokens`, `load.output_tokens`: prompt and answer lengths against the plan."""

from __future__ import annotations

import numpy as np

from servebench.analysis.data import MISSING, Ints
from servebench.analysis.facts import Facts
from servebench.analysis.verdict.codes import Code, Level, above, unmeasured

INEXACT_SHARE = 0.01
SPREAD_SHARE, SPREAD_TOKENS = 0.02, 4
SHORT_SHARE = 0.01
FORCING = frozenset({"ignore_eos", "min_tokens"})


def inputs(facts: Facts) -> Code:
    """Prompts by the server's count against the plan.

    Exact prompts must match. When the overhead of the server's template is not known beforehand, the median difference
    is taken for it, and the spread around that must be small.
    """
    requests = facts.run.requests
    counted = requests.ok & (requests.input_tokens != MISSING)
    if not requests.ok.any():
        return unmeasured("load.input_tokens", "%", "no request ended well")
    if not counted.any():
        why = "the server gave no prompt count, so prompt lengths are unproven"
        return unmeasured("load.input_tokens", "%", why, level=Level.WARN, step="let the server send usage")
    difference = (requests.input_tokens - requests.input_planned)[counted]
    prompts = facts.run.manifest.get("prompts") or {}
    if prompts.get("overhead") is None:
        return _spread(difference, requests.input_planned[counted])
    return _exact(difference) if prompts.get("exact") else _mean(difference, requests.input_planned[counted])


def _exact(difference: Ints) -> Code:
    wrong = int((difference != 0).sum())
    text = (
        f"{difference.size - wrong} of {difference.size} prompts have exactly the planned length by the server's count"
    )
    if wrong:
        text += f" (off by {int(difference.min()):+d} to {int(difference.max()):+d})"
    step = "the tokenizer used for the prompts is not the server's: see prompts in run.json"
    share = 100 * wrong / difference.size
    return above("load.input_tokens", share, "%", text, step, warn=100 * INEXACT_SHARE)


def _spread(difference: Ints, planned: Ints) -> Code:
    offset = int(np.median(difference))
    low, high = np.percentile(difference - offset, [5, 95])
    spread = float(max(abs(low), abs(high)))
    limit = max(SPREAD_TOKENS, SPREAD_SHARE * float(np.median(planned)))
    added = f"the server adds {offset} tokens to every prompt" if offset else "the server adds no tokens to the prompts"
    text = f"{added}; the rest is within {spread:.0f} tokens of the plan (p5 to p95)"
    step = "prompt lengths are off: give a --tokenizer, or use a server with /tokenize"
    return above("load.input_tokens", spread, "tokens", text, step, warn=limit)


def _mean(difference: Ints, planned: Ints) -> Code:
    off = 100 * abs(float(difference.mean())) / max(float(planned.mean()), 1.0)
    text = f"prompts are {off:.2g} % off their planned length on average, by the server's count"
    step = "prompt lengths are off: give a --tokenizer, or use a server with /tokenize"
    return above("load.input_tokens", off, "%", text, step, warn=100 * SPREAD_SHARE)


def outputs(facts: Facts) -> Code:
    """Answers against the plan. A model that stops by itself is shorter, which is normal unless it was told not to."""
    requests = facts.run.requests
    known = requests.ok & (requests.output_tokens != MISSING)
    if not known.any():
        return unmeasured("load.output_tokens", "%", "no answer has a token count")
    difference = (requests.output_tokens - requests.output_planned)[known]
    reasons = np.array([reason == "length" for reason in requests.finish_reason])[known]
    extras = set((facts.run.manifest.get("endpoint") or {}).get("extras") or ())
    forced = bool(FORCING & extras)
    wrong = (difference != 0) & (reasons | (difference > 0) | forced)
    shorter = int((difference < 0).sum())
    text = f"{shorter} of {difference.size} answers are shorter than planned"
    text += "" if forced or not shorter else ", as models are that may stop by themselves"
    step = "the server did not keep to max_tokens" + (" although told to ignore its end of text" if forced else "")
    share = 100 * float(np.mean(wrong))
    return above(
        "load.output_tokens", share, "%", f"{text}; {int(wrong.sum())} break the limit", step, warn=100 * SHORT_SHARE
    )
