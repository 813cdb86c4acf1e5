"""What counts as another server after the load than before it."""

from __future__ import annotations

from typing import Any

from servebench.run.asking import differences

BEFORE: dict[str, Any] = {
    "engine": "vllm",
    "version": "0.32.0",
    "models": ["a"],
    "settings": {"scheduler_config.max_num_seqs": 256, "model_config.dtype": "bfloat16"},
    "kv_cache": {"block_size": 16, "blocks": 4096},
    "block_size": 16,
    "absent": {"model": "on another machine"},
}


def test_the_same_is_no_difference() -> None:
    assert list(differences(BEFORE, dict(BEFORE))) == []


def test_differences_are_named_down_to_the_setting() -> None:
    after = BEFORE | {
        "version": "0.33.0",
        "settings": BEFORE["settings"] | {"scheduler_config.max_num_seqs": 128},
        "kv_cache": {"block_size": 16, "blocks": 2048},
    }
    assert list(differences(BEFORE, after)) == [
        {"what": "version", "before": "0.32.0", "after": "0.33.0"},
        {"what": "settings.scheduler_config.max_num_seqs", "before": 256, "after": 128},
        {"what": "kv_cache.blocks", "before": 4096, "after": 2048},
    ]


def test_what_was_told_only_once_is_no_difference() -> None:
    after = BEFORE | {"version": None, "settings": None, "kv_cache": {"block_size": 16}, "models": None}
    assert list(differences(BEFORE, after)) == []
    assert list(differences(after, BEFORE)) == []


def test_reasons_may_change() -> None:
    assert list(differences(BEFORE, BEFORE | {"absent": {"model": "no answer"}})) == []
