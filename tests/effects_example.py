"""A result of `servebench ab`, by hand, for those who render it: a trade found by six pairs with an A/A arm."""

from __future__ import annotations

from typing import Any

KEY = "engine.sim.max-num-batched-tokens"

_EFFECT: dict[str, Any] = {
    "title": "",
    "unit": "ms",
    "better": "lower",
    "kind": "ratio",
    "role": "estimate",
    "paired": True,
    "n": 6,
    "n_base": 6,
    "n_cand": 6,
    "base": 100.0,
    "cand": 100.0,
    "ratio": 1.0,
    "low": 0.98,
    "high": 1.02,
    "confidence": 0.96875,
    "p": None,
    "p_adjusted": None,
    "least_p": None,
    "verdict": "not tested",
    "floor": 1.023,
    "power": None,
    "more_runs": None,
    "reason": "",
}


def effect(figure: str, **known: Any) -> dict[str, Any]:
    """An effect with these attributes; the others say that nothing changed and nothing was tested."""
    return {**_EFFECT, "figure": figure, **known}


def judged(
    figure: str, verdict: str, ratio: float, low: float | None, high: float | None, **known: Any
) -> dict[str, Any]:
    """A tested effect; the primary one with role="primary"."""
    base = {"role": "secondary", "p": 0.03125, "p_adjusted": 0.03125, "least_p": 0.03125, "base": 500.0}
    base |= {"cand": 500.0 * ratio, "power": 0.83, "reason": "p 0.031, and beyond the 3 % that matter"}
    return effect(figure, verdict=verdict, ratio=ratio, low=low, high=high, **(base | known))


def trade() -> list[dict[str, Any]]:
    """ITL better, TTFT worse, and some estimates."""
    return [
        judged("itl.p99", "better", 0.24, 0.21, 0.28, role="primary"),
        judged("ttft.p95", "worse", 1.22, 1.18, 1.27, base=800.0, cand=976.0),
        effect("ttft.p50", ratio=1.4, low=1.3, high=1.5),
        effect("output_tokens_per_s", unit="tokens/s", base=256.3, cand=255.9, ratio=0.998, low=0.99, high=1.01),
        effect("failed_share", unit="", kind="difference", base=0.0, cand=0.01, ratio=0.01, low=0.0, high=0.02),
    ]


def result(effects: list[dict[str, Any]] | None = None, **changes: Any) -> dict[str, Any]:
    """A whole result; `changes` replace top-level keys."""
    whole: dict[str, Any] = {
        "kind": "ab",
        "simulated": True,
        "random_weights": False,
        "verdict": {
            "status": "SUSPECT",
            "exit_code": 0,
            "codes": [
                {"code": "pairs.lost", "level": "warn", "text": "1 of 7 pairs is lost", "next": "--retry-failed"},
                {"code": "arms.one_variable", "level": "ok", "text": "one key differs", "next": ""},
            ],
        },
        "design": {
            "name": "long-prefill-mix",
            "paired": True,
            "repeats": 7,
            "primary": "itl.p99",
            "family": ["itl.p99", "ttft.p95"],
            "alpha": 0.05,
            "min_effect": 0.03,
            "confidence": 0.95,
            "aa": True,
            "hypothesis": "smaller chunks interrupt the decodes less",
            "order_seed": 1,
            "order": [["2048", "128", "base-again"]] * 7,
            "variables": [KEY],
        },
        "arms": {
            "2048": arm("base", [f"{KEY}=2048"], 7),
            "128": arm("candidate", [f"{KEY}=128"], 6),
            "base-again": arm("again", [f"{KEY}=2048"], 7),
        },
        "pairs": {
            "planned": 7,
            "used": {"128": 6},
            "lost": [{"repeat": 3, "arm": "128", "cell": "r03-128", "reason": "the server died"}],
        },
        "comparisons": [{"base": "2048", "cand": "128", "effects": effects or trade(), "trade": None}],
        "noise_floor": {"arm": "base-again", "effects": [], "floors": {"itl.p99": 1.023}},
        "differences": [
            {"arm": "128", "key": KEY, "base": 2048, "cand": 128, "kind": "set", "named": True},
            {"arm": "128", "key": "server.kv_cache.blocks", "base": 25, "cand": 26, "kind": "observed", "named": False},
        ],
        "side_effects": side_effects(),
        "correctness": correctness(),
    }
    return whole | changes


def arm(role: str, overrides: list[str], used: int) -> dict[str, Any]:
    return {
        "role": role,
        "overrides": overrides,
        "endpoint": None,
        "model": None,
        "runs": 7,
        "used": used,
        "verdicts": {"VALID": used},
        "paths": [f"cells/r{n:02d}-{role}" for n in range(1, used + 1)],
        "figures": {"itl.p99": [500.0] * used},
    }


def side_effects() -> dict[str, Any]:
    figures = [
        ("kv_usage_p95", "KV cache in use, p95", "share", {"2048": 0.4, "128": 0.5, "base-again": 0.4}, {}),
        ("j_per_output_token", "energy per output token", "J", dict.fromkeys(("2048", "128")), {"2048": "no GPU"}),
    ]
    rows = [
        {"name": name, "title": title, "unit": unit, "arms": arms, "n": {}, "ratios": _ratios(arms), "reasons": reasons}
        for name, title, unit, arms, reasons in figures
    ]
    return {"figures": rows, "base": "2048", "population": "median over the runs"}


def _ratios(arms: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value is None else value / arms["2048"] for name, value in arms.items()}


def correctness(verdict: str = "same") -> dict[str, Any]:
    one = {
        "arm": "128",
        "verdict": verdict,
        "reason": "the arms differ no more than runs of one arm do",
        "probes": 16,
        "agreement": 0.9375,
        "within": 0.95,
        "lengths": {"agreement": 1.0, "within": 1.0},
        "finish_reasons": {"agreement": 1.0, "within": 1.0},
        "p": 0.4,
        "p_adjusted": 0.4,
        "least_p": 2 / 924,
        "differing": [
            {
                "prompt_id": "p01",
                "words": 1500,
                "agreement": 0.0,
                "within": 0.2,
                "first_difference": 12,
                "unit": "token",
                "margin": 0.31,
            }
        ],
    }
    return {"verdict": verdict, "reason": one["reason"], "alpha": 0.05, "probes": 16, "arms": {}, "comparisons": [one]}
