"""The API key in what a server sends back: taken out of texts and bytes, whole and cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.dispatch.secret import LEAST, Secrets

KEY = "sk-0123456789"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (None, None),
        ("nothing here", "nothing here"),
        (f"bad key: {KEY}!", "bad key: [key]!"),
        (f"{KEY} and {KEY}", "[key] and [key]"),
        (f"cut: {KEY[:-1]}", "cut: [key]"),
        (f"cut: {KEY[:LEAST]}", "cut: [key]"),
        (f"cut: {KEY[: LEAST - 1]}", f"cut: {KEY[: LEAST - 1]}"),
        (f"inside {KEY[:-1]} is no key", f"inside {KEY[:-1]} is no key"),
    ],
)
def test_texts(text: str | None, clean: str | None) -> None:
    assert Secrets(KEY).out_of(text) == clean


@given(st.text(max_size=20), st.integers(0, 40), st.text(max_size=20))
def test_wherever_a_text_is_cut_no_telling_part_stays(before: str, cut: int, after: str) -> None:
    clean = Secrets(KEY).out_of((before + KEY + after)[: len(before) + cut])
    assert clean is not None
    assert not any(KEY[:size] in clean for size in range(LEAST, len(KEY) + 1))


@given(st.binary(max_size=30), st.binary(max_size=30), st.lists(st.integers(0, 80), max_size=6))
def test_pieces_of_a_body_keep_their_lengths(before: bytes, after: bytes, cuts: list[int]) -> None:
    body = before + KEY.encode() + after
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    parts = [body[a:b] for a, b in pairwise(edges)]
    clean = Secrets(KEY).out_of_parts(parts)
    assert [len(part) for part in clean] == [len(part) for part in parts]
    assert KEY.encode() not in b"".join(clean)
    assert b"".join(clean).startswith(before)
    assert b"".join(clean).endswith(after)


def test_pieces_without_it_are_left_alone() -> None:
    parts = [b"data: 1\n\n", b"data: 2\n\n"]
    assert Secrets(KEY).out_of_parts(parts) == parts


def test_of_several_the_one_that_holds_another_goes_first() -> None:
    secrets = Secrets(KEY, f"Bearer {KEY}", "")
    assert secrets.out_of(f"Bearer {KEY} or {KEY}") == "[key] or [key]"
    assert secrets.out_of(f"cut: {KEY[:-2]}") == "cut: [key]"
    assert secrets.out_of_parts([b"Bea", f"rer {KEY}".encode(), b"."]) == [b"***", b"*" * (4 + len(KEY)), b"."]
