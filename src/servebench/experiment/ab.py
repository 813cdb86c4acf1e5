"""A/B: does a change help? Arms measured in interleaved pairs of one plan, judged on runs.

The result (`judge`; `compare` gives the same shape, with kind "compare")::

    {"kind": "ab",
     "simulated": bool, "random_weights": bool,
     "verdict": {"status": "VALID|SUSPECT|INVALID", "exit_code": 0|3,
                 "codes": [{"code": "pairs.lost", "level": "ok|warn|fail", "text": .., "next": ..}]},
     "design": {"name", "paired": bool, "repeats", "primary", "family": [..], "alpha", "min_effect", "confidence",
                "aa": bool, "hypothesis": str|null, "order_seed": int|null, "order": [[arm, ..] a repeat]|null,
                "variables": [keys that the arms set differently]},
     "arms": {NAME: {"role": "base|candidate|again", "overrides": [..], "endpoint", "model", "runs": n, "used": n,
                     "verdicts": {"VALID": n, ..}, "paths": [relative or as given],
                     "figures": {FIGURE: [value or null, a used run]}}},
     "pairs": {"planned": n, "used": {CANDIDATE: n},
               "lost": [{"repeat": n|null, "arm", "cell", "reason"}]},
     "comparisons": [{"base": NAME, "cand": NAME, "effects": [Effect.to_dict(), tested ones first, the primary at
                      the head], "trade": str|null}],
     "noise_floor": null | {"arm": "base-again", "effects": [Effect.to_dict() of base-again against base],
                            "floors": {FIGURE: 1.02}},
     "differences": [{"arm": CANDIDATE, "key", "base", "cand", "kind": "set|software|machine|observed",
                      "named": bool}],
     "side_effects": ..., "correctness": ...}     # as their own modules describe them; null in compare without probes
"""
