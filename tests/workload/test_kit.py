"""PromptKit: pure, exact, unique where it should be and shared where it should be."""

from __future__ import annotations

import json
from dataclasses import replace
from timeit import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.workload.kit import POOL_LIMIT, PromptKit
from servebench.workload.words import COMMON_WORDS

WORDS = COMMON_WORDS[:POOL_LIMIT]
KIT = PromptKit("server_tokenizer", exact=True, overhead=7, words=WORDS, head="Hello", leading_tokens=5)
IDS = PromptKit("token_ids", exact=True, overhead=0, token_ids=tuple(range(300, 556)))


def words_of(kit: PromptKit, *args: int) -> list[str]:
    prompt = kit.prompt(*args)
    assert isinstance(prompt, str)
    return prompt.split(" ")


@given(
    tokens=st.integers(0, 3000),
    seed=st.integers(-(2**63), 2**63 - 1),
    salt=st.integers(0, 2**64),
    group=st.integers(-1, 9),
    prefix=st.integers(0, 3000),
)
def test_has_exactly_the_tokens_asked_for(tokens: int, seed: int, salt: int, group: int, prefix: int) -> None:
    words = words_of(KIT, tokens, seed, salt, group, prefix)
    assert len(words) + 7 == max(tokens, KIT.minimum)
    assert words[0] == "Hello"
    assert set(words[1:]) <= set(WORDS)


def test_the_shortest_prompt_is_one_content_token() -> None:
    assert KIT.minimum == 8
    assert KIT.prompt(3, 1, 1) == KIT.prompt(8, 1, 1) == "Hello"
    assert replace(KIT, overhead=None).minimum == 1
    assert len(IDS.prompt(0, 1, 1)) == 1


def test_is_pure_and_the_same_on_every_machine() -> None:
    assert KIT.prompt(12, seed=5, salt=9) == KIT.prompt(12, seed=5, salt=9)
    assert KIT.prompt(12, seed=5, salt=9) == "Hello wear song very same"


def test_another_salt_or_seed_changes_the_first_block() -> None:
    opening = {tuple(words_of(KIT, 7 + 16, seed, salt)) for seed in range(200) for salt in range(50)}
    assert len(opening) == 200 * 50


def test_even_a_small_pool_gives_unique_first_blocks() -> None:
    small = replace(KIT, words=WORDS[:16])
    assert len({small.prompt(7 + 16, seed, salt=1) for seed in range(20_000)}) == 20_000


def test_a_longer_prompt_continues_a_shorter_one_of_its_seed() -> None:
    assert words_of(KIT, 500, 3, 4)[:93] == words_of(KIT, 100, 3, 4)


@pytest.mark.parametrize("prefix", [1, 16, 17, 512])
def test_a_group_shares_exactly_its_prefix(prefix: int) -> None:
    prompts = [words_of(KIT, 1024, seed, 1, 2, prefix) for seed in range(20)]
    assert len({tuple(p[:prefix]) for p in prompts}) == 1
    assert len({tuple(p[prefix : prefix + 9]) for p in prompts}) == 20


def test_the_prefix_depends_only_on_group_and_salt() -> None:
    reference = words_of(KIT, 200, 1, 1, 2, 64)[:64]
    assert words_of(KIT, 900, 77, 1, 2, 64)[:64] == reference
    assert words_of(KIT, 200, 1, 1, 3, 64)[1:16] != reference[1:16]
    assert words_of(KIT, 200, 1, 2, 2, 64)[1:16] != reference[1:16]
    assert words_of(KIT, 200, 1, 1, -1, 64)[1:16] != reference[1:16]


def test_a_prefix_longer_than_the_prompt_is_cut() -> None:
    assert KIT.prompt(50, 1, 1, 2, 512) == KIT.prompt(50, 9, 1, 2, 512)
    assert len(words_of(KIT, 50, 1, 1, 2, 512)) == 43


@given(tokens=st.integers(1, 2000), seed=st.integers(0, 2**62), group=st.integers(-1, 3))
def test_token_ids_have_the_length_and_stay_in_the_pool(tokens: int, seed: int, group: int) -> None:
    ids = IDS.prompt(tokens, seed, 1, group, 8)
    assert isinstance(ids, list)
    assert len(ids) == tokens
    assert set(ids) <= set(IDS.token_ids)


def test_calibrated_words_follow_the_fit() -> None:
    kit = PromptKit(
        "calibrated_words", exact=False, overhead=10, words=WORDS, head="that", tokens_per_word=1.5, residual=0.4
    )
    assert [len(words_of(kit, tokens, 1, 1)) for tokens in (1, 11, 160, 1510)] == [1, 1, 100, 1000]


@pytest.mark.parametrize("kit", [KIT, IDS, replace(KIT, exact=False, overhead=None, residual=0.25, note="why")])
def test_json_round_trip(kit: PromptKit) -> None:
    again = PromptKit.from_dict(json.loads(json.dumps(kit.to_dict())))
    assert again == kit
    assert again.prompt(100, 5, 6, 1, 20) == kit.prompt(100, 5, 6, 1, 20)


def test_the_summary_is_the_dict_without_the_pool() -> None:
    summary = KIT.summary()
    assert summary["method"] == "server_tokenizer"
    assert summary["overhead"] == 7
    assert summary["leading_tokens"] == 5
    assert not {"words", "token_ids", "head"} & set(summary)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, "unknown keys of a prompt kit: colour"),
        ({"words": None}, "not a prompt kit"),
        ({"words": []}, "1 to 256 words"),
        ({"token_ids": [1]}, "1 to 256 words"),
    ],
)
def test_refuses_data_that_is_no_kit(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PromptKit.from_dict(KIT.to_dict() | change)


def test_refuses_data_with_a_key_missing() -> None:
    data = KIT.to_dict()
    del data["method"]
    with pytest.raises(ValueError, match="not a prompt kit"):
        PromptKit.from_dict(data)


def test_costs_no_more_than_a_few_joins_of_its_words() -> None:
    words = words_of(KIT, 1007, 1, 1)
    join = min(repeat(lambda: " ".join([word[:] for word in words]), number=200, repeat=5))
    write = min(repeat(lambda: KIT.prompt(1007, 1, 1), number=200, repeat=5))
    assert write < 5 * join
