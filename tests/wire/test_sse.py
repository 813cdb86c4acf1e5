"""The event-stream parser against the standard, however the bytes are cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sse_reference import BOM, Parsed, cut, lines, reference

from servebench.wire.sse import SSEParser

WORDS = [
    *(b"data", b"event", b"id", b"retry", b"error", b"message", b"other", b"Data"),
    *(b"[DONE]", b'{"a":1}', b"\0", "\u2028".encode(), b"\x85", b"\xff", BOM, b"\t", b"\x0b"),
]
MARKS = [b"\n", b"\r", b"\r\n", b":", b": ", b" "]


def parse(pieces: Iterable[bytes], make: Callable[[], SSEParser] = SSEParser) -> Parsed:
    parser, parsed = make(), Parsed()
    for piece in pieces:
        _add(parsed, parser.feed(piece))
    _add(parsed, parser.finish())
    parsed.comments = parser.comments
    return parsed


def _add(parsed: Parsed, more: tuple[list[bytes], list[int], dict[int, bytes]]) -> None:
    data, ends, types = more
    assert len(data) == len(ends)
    parsed.types |= {len(parsed.data) + place: kind for place, kind in types.items()}
    parsed.data += data
    parsed.ends += ends


class Slow(SSEParser):
    """The parser without its short cut."""

    __slots__ = ()

    def _plain(self, piece: bytes) -> None:
        return None


bodies = st.lists(st.sampled_from(WORDS + MARKS * 2), max_size=40).map(b"".join)
streams = st.lists(
    st.tuples(
        st.sampled_from([b"data: ", b"data:", b"data", b"event: ", b"event:error", b": ", b"id: 1", b"", b"", b""]),
        st.sampled_from([*WORDS, b"", b" ", b"  "]),
        st.sampled_from([b"\n", b"\r", b"\r\n"]),
    ).map(b"".join),
    max_size=20,
).map(b"".join)
anything = st.tuples(st.sampled_from([b"", BOM]), bodies | streams).map(b"".join)
plain_streams = st.lists(
    st.sampled_from(
        [b"data: {}\n\n", b"data:  two\n\n", b"data: \n\n", b"data: [DONE]\n\n", "data: \u2028\n\n".encode()]
    ),
    min_size=1,
).map(b"".join)
places = st.lists(st.integers(0, 400), max_size=6)


@settings(max_examples=300)
@given(anything, places)
@example(BOM + b"data: a\n\n", [1])
@example(BOM + b"data: a\n\n", [2])
@example(b"data: a\r\n\r\n", [8])
@example(b"data: a\r\n\r\n", [10])
@example(b"data: a\n\n", [8])
@example(BOM + b"\ndata: a\n\n", [])
@example(BOM + b"data: a\n\n" + BOM + b"data: b\n\n", [12])
def test_any_split_gives_what_the_standard_says(body: bytes, where: list[int]) -> None:
    assert parse(cut(body, where)) == reference(body)


@given(anything)
def test_byte_by_byte_gives_what_the_standard_says(body: bytes) -> None:
    assert parse(body[i : i + 1] for i in range(len(body))) == reference(body)


@given(plain_streams | anything, places)
def test_the_short_cut_changes_nothing(body: bytes, where: list[int]) -> None:
    pieces = cut(body, where)
    assert parse(pieces) == parse(pieces, Slow)


@given(plain_streams)
def test_the_short_cut_is_taken_where_events_are_plain(body: bytes) -> None:
    assert SSEParser()._plain(body) is not None
    assert parse([body, body]) == reference(body + body)


@given(anything, places)
def test_each_end_is_the_mark_of_the_last_data_line(body: bytes, where: list[int]) -> None:
    parsed = parse(cut(body, where))
    assert parsed.ends == sorted(set(parsed.ends))
    line_before = {mark: line for line, mark in lines(body)}
    for data, end in zip(parsed.data, parsed.ends, strict=True):
        last = data.rpartition(b"\n")[2]
        assert line_before[end] in (b"data: " + last, b"data:" + last, b"data" + last)


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a \n\n", [b" a "]),
        (b"data:\ta\n\n", [b"\ta"]),
        (b"data\n\n", [b""]),
        (b"data:\n\n", [b""]),
        (b"data: \n\n", [b""]),
        (b"data\ndata\n\n", [b"\n"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\rdata: b\r\n\n", [b"a\nb"]),
        (b"data: a\n: ping\nid: 1\ndata: b\n\n", [b"a\nb"]),
        (b"data: a: b\n\n", [b"a: b"]),
        (b" data: a\n\nData: b\n\ndata : c\n\ndatas: d\n\n", []),
        (b"\n\n\r\r\r\n\r\n", []),
        (b": data: a\n\n", []),
        (b"event: x\n\n", []),
        (BOM + b"data: a\n\n", [b"a"]),
        (BOM + BOM + b"data: a\n\n", []),
        (b"data: a\n\n" + BOM + b"data: b\n\n", [b"a"]),
        (b"data: \0\n\n", [b"\0"]),
        ("data: a\u2028b\u2029c\x85d\n\n".encode(), ["a\u2028b\u2029c\x85d".encode()]),
        (b"data: a\x0b\x0c\x1c\x1d\x1e\n\n", [b"a\x0b\x0c\x1c\x1d\x1e"]),
        (b"data: \xff\xfe\n\n", [b"\xff\xfe"]),
    ],
)
def test_the_fields_of_the_standard(body: bytes, data: list[bytes]) -> None:
    assert parse([body]).data == data == reference(body).data


@pytest.mark.parametrize(
    ("body", "data"), [(b"data: a\n", [b"a"]), (b"data: a", []), (b"data: a\ndata: b", [b"a"]), (b"", [])]
)
def test_a_body_that_ends_early_keeps_complete_lines_only(body: bytes, data: list[bytes]) -> None:
    assert parse([body]).data == data


def test_types_are_those_of_their_own_event() -> None:
    named = b"event: error\ndata: a\n\ndata: b\n\nevent: message\ndata: c\n\n"
    renamed = b"event: x\nevent: y\ndata: d\n\n"
    without_data = b"event: z\n\ndata: e\n\n"
    assert parse([named + renamed + without_data]).types == {0: b"error", 3: b"y"}


def test_comments_are_counted_and_deliver_nothing() -> None:
    parser = SSEParser()
    assert [parser.feed(piece) for piece in (b": ping\n", b"\n:", b"\n", b":::\n\n")] == [([], [], {})] * 4
    assert parser.comments == 3


def test_an_event_is_delivered_with_its_blank_line_and_not_before() -> None:
    parser = SSEParser()
    assert parser.pending_end is None
    assert parser.feed(b"data: a\n") == ([], [], {})
    assert parser.pending_end == 7
    assert parser.feed(b"\n") == ([b"a"], [7], {})
    assert parser.pending_end is None
    assert parser.finish() == ([], [], {})


def _seconds(size: int, piece: int) -> float:
    """The best of five times to parse one event of `size` bytes in pieces."""
    body = b"data: " + b"x" * size + b"\n\n"
    pieces = [body[i : i + piece] for i in range(0, len(body), piece)]
    times = []
    for _ in range(5):
        start = time.process_time()
        parsed = parse(pieces)
        times.append(time.process_time() - start)
        assert [len(data) for data in parsed.data] == [size]
    return min(times)


@pytest.mark.parametrize("piece", [65_536, 1_448])
def test_one_event_of_megabytes_takes_linear_time(piece: int) -> None:
    # Eight-fold here is linear, and sixty-four-fold quadratic.
    assert _seconds(16 << 20, piece) < 24 * _seconds(2 << 20, piece)
