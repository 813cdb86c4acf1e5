"""The simulated tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.engine.sim import tokens


@given(st.lists(st.integers(0, len(tokens.WORDS) - 1), max_size=50))
def test_ids_survive_decode_and_encode(ids: list[int]):
    assert tokens.encode(tokens.decode(ids)) == ids


@given(st.text(max_size=200))
def test_any_text_keeps_its_count(text: str):
    ids = tokens.encode(text)
    assert len(ids) == len(text.split())
    assert tokens.encode(tokens.decode(ids)) == ids


def test_every_id_has_a_word_of_its_own_and_of_one_length():
    words = tokens.WORDS[: tokens.VOCABULARY]
    assert len(set(words)) == tokens.VOCABULARY
    assert {len(word) for word in words} == {tokens.WORD_LENGTH}


def test_ids_do_not_depend_on_the_process():
    assert tokens.encode("hello there") == [10870, 39430]


@given(
    st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text(max_size=50)), min_size=1, max_size=5)
)
def test_the_chat_template_adds_a_constant_to_each_turn(turns: list[tuple[str, str]]):
    content = sum(len(text.split()) for _, text in turns)
    assert len(tokens.encode(tokens.render_chat(turns))) == content + 3 * len(turns) + 2
    assert len(tokens.encode(tokens.render_chat(turns, add_generation_prompt=False))) == content + 3 * len(turns)


@pytest.mark.parametrize("token", [-1, len(tokens.WORDS)])
def test_ids_outside_the_vocabulary_are_refused(token: int):
    with pytest.raises(ValueError, match=f"{token} is out of the vocabulary"):
        tokens.decode([0, token])


def test_answers_repeat_for_a_seed_and_never_hold_a_mark():
    first = [tokens.answer_token(12345, index) for index in range(1000)]
    assert first == [tokens.answer_token(12345, index) for index in range(1000)]
    assert first != [tokens.answer_token(54321, index) for index in range(1000)]
    assert all(0 <= token < tokens.VOCABULARY for token in first)
