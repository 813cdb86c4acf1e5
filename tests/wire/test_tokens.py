"""Tokens of each event, by every source that DESIGN §3.3 names, best first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from servebench.record.columns import Channel, TokenSource
from servebench.wire.tokens import (
    ASSUMED,
    CHUNK_USAGE,
    EVENTS,
    FINISH,
    STRONG,
    TOKEN_IDS,
    TOKENIZER,
    USAGE_SHARE,
    WEAK,
    Chunks,
    EventTokens,
    _share,
    count_tokens,
)

NONE = 0
KINDS = {"s": STRONG, "w": WEAK, "f": FINISH, "-": NONE}


def events(
    kinds: str,
    *,
    lengths: list[int] | None = None,
    ids: dict[int, int] | None = None,
    totals: dict[int, int] | None = None,
    arrivals: list[int] | None = None,
    channels: list[int] | None = None,
) -> EventTokens:
    """One event a letter: s strong, w weak, f finish, - none; 10 ns apart, of 4 characters and 100 bytes."""
    made = EventTokens()
    for place, kind in enumerate(kinds):
        length = lengths[place] if lengths else 4 * (kind == "s")
        arrival = arrivals[place] if arrivals else 10 * place
        channel = channels[place] if channels else 0
        made.add(arrival, KINDS[kind], channel, length, 100, (ids or {}).get(place), (totals or {}).get(place))
    return made


def spread(chunks: Chunks, size: int) -> list[int]:
    """Tokens of each event, where events are 10 ns apart."""
    tokens = [0] * size
    for arrival, count in zip(chunks.arrival_ns.tolist(), chunks.tokens.tolist(), strict=True):
        tokens[arrival // 10] = count
    return tokens


def test_the_sources_are_spelled_as_they_are_recorded() -> None:
    ours = {CHUNK_USAGE, TOKEN_IDS, EVENTS, USAGE_SHARE, TOKENIZER, ASSUMED}
    assert ours == {source.value for source in TokenSource}


@pytest.mark.parametrize(
    ("kinds", "given", "usage", "tokenized", "tokens", "source"),
    [
        # Running usage.
        ("sss", {"totals": {0: 1, 1: 2, 2: 3}}, 3, None, [1, 1, 1], CHUNK_USAGE),
        ("sss", {"totals": {0: 2, 1: 3, 2: 7}}, 7, None, [2, 1, 4], CHUNK_USAGE),
        ("-ss", {"totals": {0: 0, 1: 1, 2: 4}}, 4, None, [0, 1, 3], CHUNK_USAGE),
        ("sws", {"totals": {0: 1, 1: 2, 2: 3}}, 3, None, [1, 1, 1], CHUNK_USAGE),
        ("ss-", {"totals": {0: 1, 1: 2, 2: 3}}, 3, None, [1, 1, 1], CHUNK_USAGE),
        ("ww", {"totals": {0: 1, 1: 2}}, 2, None, [1, 1], CHUNK_USAGE),
        ("ss", {"totals": {0: 1, 1: 2}}, 3, None, [1, 2], CHUNK_USAGE),  # an end-of-sequence token without an event
        ("ss", {"totals": {0: 3, 1: 2}}, 3, None, [3, 0], CHUNK_USAGE),  # a total that goes back
        ("sss", {"totals": {0: 3, 1: 3, 2: 3}}, 3, None, [3, 0, 0], CHUNK_USAGE),
        # Totals that are none: only on some events, given once at the end, each choice's own, or more than usage.
        ("sss", {"totals": {0: 0}}, 3, None, [1, 1, 1], EVENTS),
        ("wf", {"totals": {0: 0}}, 1, None, [1, 0], EVENTS),
        ("ssss", {"totals": {1: 2, 3: 4}}, 4, None, [1, 1, 1, 1], EVENTS),
        ("sss", {"totals": {2: 3}}, 3, None, [1, 1, 1], EVENTS),
        ("ssff", {"totals": {2: 2, 3: 2}}, 2, None, [1, 1, 0, 0], EVENTS),
        ("ssss", {"totals": {0: 1, 1: 1, 2: 2, 3: 2}}, 4, None, [1, 1, 1, 1], EVENTS),
        ("ss", {"totals": {0: 5, 1: 9}}, 2, None, [1, 1], EVENTS),
        ("ss", {"totals": {0: 1, 1: 2}}, 40, None, [20, 20], USAGE_SHARE),
        ("s", {"totals": {0: 20}}, 20, None, [20], USAGE_SHARE),
        ("s", {"totals": {0: 1}}, 1, None, [1], EVENTS),
        ("ss", {"totals": {0: 1, 1: 2}}, None, None, [1, 1], ASSUMED),
        # Token ids.
        ("sss", {"ids": {0: 1, 1: 3, 2: 2}}, None, None, [1, 3, 2], TOKEN_IDS),
        ("sss", {"ids": {0: 1, 1: 3, 2: 2}}, 6, None, [1, 3, 2], TOKEN_IDS),
        ("-s-", {"ids": {0: 2, 1: 1, 2: 1}}, 4, None, [2, 1, 1], TOKEN_IDS),
        ("sss", {"ids": {0: 1, 1: 3, 2: 2}}, 7, None, [1, 3, 3], TOKEN_IDS),
        ("sss", {"ids": {0: 1, 1: 3, 2: 0}}, 5, None, [1, 4, 0], TOKEN_IDS),
        ("ss", {"ids": {0: 1}}, 2, None, [1, 1], EVENTS),
        ("ss", {"ids": {0: 5, 1: 5}}, 2, None, [1, 1], EVENTS),
        ("ss", {"ids": {0: 1, 1: 1}}, 40, None, [20, 20], USAGE_SHARE),
        ("sss", {"ids": {0: 2, 1: 1, 2: 1}, "totals": {0: 1, 1: 2, 2: 4}}, 4, None, [1, 1, 2], CHUNK_USAGE),
        # As many events as usage has tokens: those with text, then the empty ones, then the one that finishes.
        ("sss", {}, 3, None, [1, 1, 1], EVENTS),
        ("swwf", {}, 1, None, [1, 0, 0, 0], EVENTS),
        ("swwf", {}, 3, None, [1, 1, 1, 0], EVENTS),
        ("swwf", {}, 4, None, [1, 1, 1, 1], EVENTS),
        ("-s-f", {}, 2, None, [0, 1, 0, 1], EVENTS),
        ("ww", {}, 2, None, [1, 1], EVENTS),
        ("f", {}, 1, None, [1], EVENTS),
        # Usage shared by text length; empty events get a share only where nothing has text.
        ("sss", {"lengths": [30, 10, 20]}, 12, None, [6, 2, 4], USAGE_SHARE),
        ("swsf", {"lengths": [10, 0, 10, 0]}, 20, None, [10, 0, 10, 0], USAGE_SHARE),
        ("wwf", {}, 6, None, [2, 2, 2], USAGE_SHARE),
        ("ss", {"lengths": [1, 999]}, 100, None, [1, 99], USAGE_SHARE),
        ("ss", {"lengths": [999, 1]}, 100, None, [99, 1], USAGE_SHARE),
        ("sss", {"lengths": [1, 100, 1]}, 2, None, [1, 0, 1], USAGE_SHARE),
        ("sss", {"lengths": [1, 100, 1]}, 1, None, [1, 0, 0], USAGE_SHARE),
        # A tokenizer's count, only where the server gives none.
        ("sss", {"lengths": [30, 10, 20]}, None, 12, [6, 2, 4], TOKENIZER),
        ("sss", {}, 3, 12, [1, 1, 1], EVENTS),
        ("sws", {}, None, 6, [3, 0, 3], TOKENIZER),
        # Nothing but the events.
        ("-swsf", {}, None, None, [0, 1, 0, 1, 0], ASSUMED),
    ],
)
def test_the_source_and_the_tokens(
    kinds: str, given: dict[str, object], usage: int | None, tokenized: int | None, tokens: list[int], source: str
) -> None:
    chunks = count_tokens(events(kinds, **given), usage, tokenized)  # type: ignore[arg-type]
    assert (spread(chunks, len(kinds)), chunks.source) == (tokens, source)
    assert chunks.total == sum(tokens)


@pytest.mark.parametrize(
    ("kinds", "usage", "tokenized"),
    [("", None, None), ("", 5, None), ("--", 5, None), ("-wf", None, None), ("s", 0, None)],
)
def test_no_tokens_have_no_source(kinds: str, usage: int | None, tokenized: int | None) -> None:
    chunks = count_tokens(events(kinds), usage, tokenized)
    assert (chunks.total, chunks.source, chunks.first_visible_ns, chunks.coalesced) == (0, None, None, 0)
    assert [len(column) for column in (chunks.arrival_ns, chunks.tokens, chunks.channel, chunks.size)] == [0] * 4


def test_events_of_one_read_are_one_chunk() -> None:
    made = events("s-sss", arrivals=[7, 7, 7, 8, 9], channels=[1, 0, 0, 0, 2])
    chunks = count_tokens(made, 4)
    assert chunks.arrival_ns.tolist() == [7, 8, 9]
    assert chunks.tokens.tolist() == [2, 1, 1]
    assert chunks.channel.tolist() == [Channel.REASONING, Channel.CONTENT, Channel.TOOL]
    assert chunks.size.tolist() == [200, 100, 100]
    assert (chunks.coalesced, chunks.first_visible_ns) == (1, 7)


def test_a_read_with_one_token_and_empty_events_is_not_coalesced() -> None:
    assert count_tokens(events("-sf", arrivals=[7, 7, 7]), 1).coalesced == 0


@pytest.mark.parametrize(
    ("kinds", "channels", "visible"),
    [("ws", [0, 0], 10), ("ss", [1, 0], 10), ("ss", [1, 2], None), ("ww", [0, 0], None), ("ss", [0, 1], 0)],
)
def test_the_first_visible_is_the_first_answer_text(kinds: str, channels: list[int], visible: int | None) -> None:
    assert count_tokens(events(kinds, channels=channels), 2).first_visible_ns == visible


def test_columns_have_the_types_that_the_journal_stores() -> None:
    for chunks in (count_tokens(events("ss"), 2), count_tokens(events(""), None)):
        columns = (chunks.arrival_ns, chunks.tokens, chunks.channel, chunks.size)
        assert [column.dtype.name for column in columns] == ["int64", "int32", "int8", "int32"]


weights = st.lists(st.integers(0, 5_000_000), min_size=1, max_size=50).map(lambda values: np.array(values, np.int64))


@given(st.integers(0, 2**31 - 1) | st.integers(0, 60), weights)
@example(0, np.array([1, 1], np.int64))
@example(2**31 - 1, np.full(50, 5_000_000, np.int64))
def test_shares_sum_exactly_and_leave_no_weight_without(total: int, given: NDArray[np.int64]) -> None:
    shares = _share(total, given)
    carriers = int((given > 0).sum())
    assert shares.sum() == (total if carriers else 0)
    assert shares.min() >= 0
    assert not shares[given == 0].any()
    assert (shares > 0).sum() == min(total, carriers) if total < carriers else (shares[given > 0] > 0).all()


@given(st.integers(0, 10_000), weights)
def test_a_share_is_proportional_but_for_the_ones_raised_to_one(total: int, given: NDArray[np.int64]) -> None:
    if total < (given > 0).sum():
        return
    exact = total * given / max(1, given.sum())
    raised = np.maximum(1 - exact, 0)[given > 0].sum() if given.any() else 0
    assert (np.abs(_share(total, given) - exact) <= raised + 2).all() or not given.any()


@given(st.integers(1, 60), st.integers(1, 60))
def test_few_tokens_reach_from_the_first_event_to_the_last(total: int, size: int) -> None:
    places = np.flatnonzero(_share(total, np.ones(size, np.int64)))
    assert places[0] == 0
    assert places[-1] == size - 1 or total == 1


kinds = st.text("swf-", max_size=12)
counts = st.integers(0, 40)


@given(
    kinds,
    st.dictionaries(st.integers(0, 11), counts),
    st.dictionaries(st.integers(0, 11), counts),
    st.lists(st.integers(0, 3), min_size=12, max_size=12),
    counts,
)
def test_tokens_sum_to_usage_whenever_there_is_text(
    letters: str, ids: dict[int, int], totals: dict[int, int], gaps: list[int], usage: int
) -> None:
    arrivals = np.cumsum(gaps).tolist()
    chunks = count_tokens(events(letters, ids=ids, totals=totals, arrivals=arrivals), usage)
    assert chunks.total == usage or "s" not in letters
    assert (chunks.tokens > 0).all()
    assert (np.diff(chunks.arrival_ns) > 0).all()
    assert chunks.source in [source.value for source in TokenSource] if chunks.total else chunks.source is None
