"""The settings of the simulated engine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from servebench.engine.sim.settings import SimSettings
from servebench.errors import UsageError


def test_defaults_are_those_of_the_design():
    settings = SimSettings()
    assert (settings.base, settings.per_prefill_token, settings.per_sequence) == (4e-3, 60e-6, 40e-6)
    assert (settings.max_model_len, settings.num_blocks) == (400_000, 25_000)


def test_they_come_from_a_mapping_or_from_attributes_and_round_trip():
    settings = SimSettings(base=0.01, kv_tokens=3200)
    assert SimSettings.of({"base": 0.01, "kv_tokens": 3200}) == settings
    assert SimSettings.of(SimpleNamespace(**settings.to_dict())) == settings
    assert SimSettings.of(settings.to_dict()) == settings


def test_an_unknown_key_is_refused_with_the_nearest_right_one():
    with pytest.raises(UsageError, match=r'no key "max_seqs" \(did you mean "max_num_seqs"'):
        SimSettings.of({"max_seqs": 4})


@pytest.mark.parametrize(
    "wrong",
    [
        {"base": 0.0},
        {"per_prefill_token": -1e-6},
        {"per_sequence": float("nan")},
        {"max_num_batched_tokens": 0},
        {"max_num_seqs": 0},
        {"block_size": 0},
        {"kv_tokens": 15},
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, float]):
    with pytest.raises(UsageError, match=f"engine.sim.{next(iter(wrong))} must"):
        SimSettings.of(wrong)


def test_the_cache_is_rounded_down_to_whole_blocks():
    assert SimSettings(kv_tokens=100).max_model_len == 96
