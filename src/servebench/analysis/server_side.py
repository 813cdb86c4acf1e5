"""What the server counted, against what the client saw; and the client's TTFT split by the server's own times.

Shape of `server_side` in summary.json; what the server does not tell is null::

    {"reason": str | null,                      # why there is nothing of the server
     "engines": ["engine-0"], "missing": [str], "not_offered": [str], "lost": [str], "renamed": [...],   # series
     "scrapes": 120, "longest_gap_ms": 512.0, "scrape_mean_ms": 1.3 | null,
     "restarts": 0, "restarted_at_ms": [],      # since the start of the load
     "down": {"scrapes": 0, "of": 120},         # scrapes that found no server
     "counters": {name: {"run": 400.0, "window": 310.2, "unit": "requests"}},  # `counters.COUNTERS`
     "agreement": [{"what": "requests" | "output_tokens" | "input_tokens", "client": 400, "server": 400.0 | null,
                    "difference": 0.0 | null, "agrees": true | null, "reason": str | null}],   # whole run
     "histograms": {"queue": {"n": 400.0, "mean_ms": 3.1, "window_n": 310.0, "window_mean_ms": 3.3}},
     "ttft_split": {"reason": str | null, "n_client": 400, "n_server": 400.0, "client_ms": 61.0, "network_ms": 1.2,
                    "queue_ms": 3.1, "prefill_ms": 56.5, "rest_ms": 0.2, "definition": str},   # means a request
     "service": {"reason": str | null, "client_ms", "server_ms", "difference_ms", "difference_share", "definition"},
     "steps": {"n": 5210.0, "per_s": 86.8, "mean_tokens": 17.1},              # inside the window
     "prefix_cache": {"reason": str | null, "queries": 80000.0, "hits": 640.0, "hit_share": 0.008,
                      "expected_at_most": 640, "beyond": 0.0, "beyond_share": 0.0, "leading_tokens": 21,
                      "block_size": 16, "block_size_from": str, "definition": str},
     "spec_decode": {"drafted": null, "accepted": null, "acceptance": null},
     "population": str}
"""

from __future__ import annotations

from typing import Any

import numpy as np

from servebench.analysis.counters import COUNTERS, HISTOGRAMS, SOURCE, Growth, engines, growth, restarts
from servebench.analysis.data import MISSING
from servebench.analysis.facts import Facts
from servebench.analysis.prefix_cache import describe as prefix_cache
from servebench.analysis.rounding import milliseconds, rounded
from servebench.analysis.sampling import absent, longest_gap, told

Document = dict[str, Any]

POPULATION = "run: from the sample before the first request to that after the last; window: the measured window"
SPLIT = (
    "means a request over the whole run: client = first_token − sent; network = client − the server's own TTFT (its "
    "front end, connection and client included); rest = the server's TTFT − queue − prefill"
)
SERVICE = "means a request over the whole run: client = last_token − sent; server = queue + prefill + decode"


def describe(facts: Facts) -> Document:
    """The `server_side` section of summary.json."""
    run = facts.run
    names = engines(run)
    counted = {name: growth(facts, name) for name in COUNTERS}
    timed = {name: (growth(facts, f"{name}_sum"), growth(facts, f"{name}_count")) for name in HISTOGRAMS}
    stated, again = told(run, SOURCE), restarts(run)
    return {
        "reason": None if names else absent(run, SOURCE, "no server metrics"),
        "engines": list(names),
        **{key: list(stated.get(key) or []) for key in ("missing", "not_offered", "lost", "renamed")},
        **_scrapes(facts),
        "restarts": int(again.size),
        "restarted_at_ms": [milliseconds(int(t) - facts.window.start) for t in again],
        "counters": {name: _counter(counted[name], unit) for name, unit in COUNTERS.items()},
        "agreement": agreement(facts, counted, int(again.size)),
        "histograms": {name: _histogram(*pair) for name, pair in timed.items()},
        "ttft_split": ttft_split(facts, timed),
        "service": service(facts, timed),
        "steps": _steps(facts, counted),
        "prefix_cache": prefix_cache(facts, counted["prefix_queries"].run, counted["prefix_hits"].run),
        "spec_decode": _spec_decode(counted),
        "population": POPULATION,
    }


def _scrapes(facts: Facts) -> Document:
    run, window = facts.run, facts.window
    up = run.workers("up", SOURCE)
    states = np.concatenate([s.value for s in up.values()]) if up else np.empty(0)
    cost = run.workers("scrape_ms", SOURCE)
    spent = np.concatenate([s.value for s in cost.values()]) if cost else np.empty(0)
    told_by = [s.t for (source, _, name), s in run.telemetry.items() if source == SOURCE and name != "up"]
    t = np.unique(np.concatenate(told_by)) if told_by else np.empty(0, np.int64)
    return {
        "scrapes": int(t.size),
        "longest_gap_ms": milliseconds(longest_gap(t, window.warmup_end, window.throughput_end)),
        "scrape_mean_ms": rounded(float(spent.mean())) if spent.size else None,
        "down": {"scrapes": int((states == 0).sum()), "of": int(states.size)},
    }


def _counter(found: Growth, unit: str) -> Document:
    return {"run": rounded(found.run), "window": rounded(found.window), "unit": unit}


def agreement(facts: Facts, counted: dict[str, Growth], restarted: int) -> list[Document]:
    """The client's own counts of the whole run against the server's; a difference has a reason, if it is known."""
    requests, outcomes = facts.run.requests, facts.whole
    known = requests.input_tokens[requests.input_tokens != MISSING]
    rows = (
        ("requests", outcomes.ok, counted["requests_success"]),
        ("output_tokens", int(facts.run.chunks.tokens.sum(dtype=np.int64)), counted["generation_tokens"]),
        ("input_tokens", int(known.sum()), counted["prompt_tokens"]),
    )
    others = outcomes.sent - outcomes.ok
    return [_agreement(what, client, server.run, restarted, others) for what, client, server in rows]


def _agreement(what: str, client: int, server: float | None, restarted: int, others: int) -> Document:
    difference = None if server is None else server - client
    reason = None
    if difference is None:
        reason = "the server does not tell it, or its samples do not span the run"
    elif difference and restarted:
        reason = "the server restarted: what it had counted since the last sample is lost"
    elif difference and others:
        reason = f"{others} requests did not end well; the server may have counted them"
    return {
        "what": what,
        "client": client,
        "server": rounded(server),
        "difference": rounded(difference),
        "agrees": None if difference is None else difference == 0,
        "reason": reason,
    }


def _histogram(total: Growth, count: Growth) -> Document:
    return {
        "n": rounded(count.run),
        "mean_ms": rounded(_mean_ms(total.run, count.run)),
        "window_n": rounded(count.window),
        "window_mean_ms": rounded(_mean_ms(total.window, count.window)),
    }


def _mean_ms(seconds: float | None, count: float | None) -> float | None:
    return 1e3 * seconds / count if seconds is not None and count else None


def _mean_of(timed: dict[str, tuple[Growth, Growth]], name: str) -> float | None:
    total, count = timed[name]
    return _mean_ms(total.run, count.run)


def ttft_split(facts: Facts, timed: dict[str, tuple[Growth, Growth]]) -> Document:
    """The client's mean TTFT from sent as network, queue, prefill, and the rest that none of them explains."""
    requests = facts.run.requests
    known = (requests.sent != MISSING) & (requests.first_token != MISSING)
    client = float((requests.first_token - requests.sent)[known].mean()) / 1e6 if known.any() else None
    own, queue, prefill = (_mean_of(timed, name) for name in ("ttft", "queue", "prefill"))
    network = client - own if client is not None and own is not None else None
    whole = own if own is not None else client
    rest = whole - queue - prefill if whole is not None and queue is not None and prefill is not None else None
    parts = {"client_ms": client, "network_ms": network, "queue_ms": queue, "prefill_ms": prefill, "rest_ms": rest}
    return {
        "reason": _missing(parts, {"network_ms": "its own TTFT", "queue_ms": "its queue", "prefill_ms": "its prefill"}),
        "n_client": int(known.sum()),
        "n_server": rounded(timed["ttft"][1].run),
        **{name: rounded(value) for name, value in parts.items()},
        "definition": SPLIT,
    }


def _missing(parts: dict[str, float | None], what: dict[str, str]) -> str | None:
    if parts["client_ms"] is None:
        return "no request had a first token"
    unknown = [text for name, text in what.items() if parts[name] is None]
    return f"the server does not tell {', '.join(unknown)}" if unknown else None


def service(facts: Facts, timed: dict[str, tuple[Growth, Growth]]) -> Document:
    """The client's mean time from sent to last token against what the server says it spent."""
    requests = facts.run.requests
    known = requests.ok & (requests.sent != MISSING) & (requests.last_token != MISSING)
    client = float((requests.last_token - requests.sent)[known].mean()) / 1e6 if known.any() else None
    parts = {name: _mean_of(timed, name) for name in ("queue", "prefill", "decode")}
    unknown = [name for name, value in parts.items() if value is None]
    server = None if unknown else sum(value for value in parts.values() if value is not None)
    difference = client - server if client is not None and server is not None else None
    reason = f"the server does not tell {', '.join(unknown)}" if unknown else None
    return {
        "reason": reason if client is not None else "no request ended well",
        "client_ms": rounded(client),
        "server_ms": rounded(server),
        "difference_ms": rounded(difference),
        "difference_share": rounded(difference / client) if difference is not None and client else None,
        "definition": SERVICE,
    }


def _steps(facts: Facts, counted: dict[str, Growth]) -> Document:
    number, tokens, seconds = counted["steps"].window, counted["step_tokens_sum"].window, facts.window.seconds
    return {
        "n": rounded(number),
        "per_s": rounded(number / seconds) if number is not None and seconds > 0 else None,
        "mean_tokens": rounded(tokens / number) if tokens is not None and number else None,
    }


def _spec_decode(counted: dict[str, Growth]) -> Document:
    drafted, accepted = counted["spec_drafted"].run, counted["spec_accepted"].run
    share = accepted / drafted if drafted and accepted is not None else None
    return {"drafted": rounded(drafted), "accepted": rounded(accepted), "acceptance": rounded(share)}
