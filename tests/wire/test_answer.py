"""Answers: the same bytes give the same tokens and instants however they are cut, and odd ones are read as meant."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sse_reference import cut, reference

from servebench.record.columns import Channel
from servebench.testing import DONE, Events, error, sse, usage
from servebench.wire.answer import Answer
from servebench.wire.tokens import Chunks

CHAT, COMPLETIONS = Events("chat"), Events("completions")
APIS = pytest.mark.parametrize("ev", [CHAT, COMPLETIONS], ids=["chat", "completions"])


def read(
    parts: Sequence[bytes],
    stamps: Sequence[int] | None = None,
    *,
    stream: bool = True,
    count: Callable[[str], int] | None = None,
    portions: Sequence[int] = (),
) -> tuple[Answer, Chunks]:
    """The answer that `parts` hold; they arrive 10 ns apart unless `stamps` say otherwise.

    `portions` are the numbers of parts after which one call of `feed` ends and the next begins.
    """
    stamps = stamps or [10 * place for place in range(len(parts))]
    answer = Answer(stream, count)
    for a, b in pairwise([0, *portions, len(parts)]):
        answer.feed(parts[a:b], stamps[a:b])
    return answer, answer.finish()


def one_each(*events: Any, done: bool = True) -> list[bytes]:
    """Each event in a part of its own; a dict is encoded, bytes stay as they are."""
    parts = [event if isinstance(event, bytes) else sse(event) for event in events]
    return [*parts, DONE] if done else parts


def state(answer: Answer, chunks: Chunks) -> dict[str, Any]:
    """All that an answer says, in a form that can be compared."""
    names = ("done", "done_ns", "finish_reason", "error", "malformed", "first_event_ns", "last_event_ns", "comments")
    counts = ("input_tokens", "cached_tokens", "usage_tokens")
    columns = ("arrival_ns", "tokens", "channel", "size")
    return (
        {name: getattr(answer, name) for name in (*names, *counts)}
        | {name: getattr(chunks, name).tolist() for name in columns}
        | {name: getattr(chunks, name) for name in ("source", "coalesced", "first_visible_ns")}
    )


def said(answer: Answer, chunks: Chunks) -> tuple[list[tuple[int, int]], str | None]:
    """(number of the part, tokens) of each chunk, where each part holds one event; and the source."""
    places = [arrival // 10 for arrival in chunks.arrival_ns.tolist()]
    return list(zip(places, chunks.tokens.tolist(), strict=True)), chunks.source


# Any cut of the same bytes.

EVENTS = [
    *(sse(CHAT.role()), sse(CHAT.text(" a")), sse(CHAT.text(" b"), eol="\r\n"), sse(CHAT.text("é漢😀"), eol="\r")),
    *(
        sse(CHAT.text("")),
        sse(CHAT.reasoning("hm")),
        sse(CHAT.tool_call("1")),
        sse(COMPLETIONS.text(" c"), space=False),
    ),
    *(
        sse(CHAT.text(" d", usage=usage(5, 2))),
        sse(CHAT.usage(5, 3)),
        sse(CHAT.finish()),
        sse(CHAT.token_ids("x", [1])),
    ),
    *(sse(json.dumps(CHAT.text(" e"), indent=1)), sse(CHAT.delta(None)), sse(CHAT.chunk(None))),
    *(b": ping\n\n", b"data:\n\n", b"data:  \n\n", b"id: 1\n\n", b"\n\n"),
]
ENDS = [
    *(DONE, b"data:[DONE]\n\n", b"data:  [DONE] \r\n\r\n", b"data: [DONE]\n", DONE + sse(CHAT.text(" late")), DONE * 2),
    *(sse(error("no memory")), sse(error("no memory"), event="error"), b"event: error\ndata: no memory\n\n"),
    *(b"data: {broken\n\n", b"data: [1]\n\n", b"", sse(CHAT.text(" ?")).replace(b"?", b"\xe6\xff")),
    *(b": 1\n\ndata: 5\n\n", sse(CHAT.text(" f"))[:-1], sse(CHAT.text(" g"))[:-2], sse(CHAT.text("h")) + b": ping\n"),
]
bodies = st.tuples(
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(st.sampled_from(EVENTS), max_size=8).map(b"".join),
    st.sampled_from(ENDS),
    st.sampled_from(["", *ENDS[:5], EVENTS[1]]).map(lambda end: end or b""),
).map(b"".join)
places = st.lists(st.integers(0, 2000), max_size=8)


@settings(max_examples=300)
@given(bodies, places, st.lists(st.integers(0, 2), min_size=10, max_size=10), st.data())
def test_portions_change_nothing(body: bytes, where: list[int], gaps: list[int], data: st.DataObject) -> None:
    parts = cut(body, where)
    stamps = [100 + sum(gaps[: place + 1]) for place in range(len(parts))]
    portions = sorted(data.draw(st.lists(st.integers(0, len(parts)), max_size=4), label="portions"))
    assert state(*read(parts, stamps, portions=portions)) == state(*read(parts, stamps))


@settings(max_examples=300)
@given(bodies, places)
@example(sse(CHAT.text(" a")) + DONE, [len(sse(CHAT.text(" a"))) - 1])
def test_cuts_change_only_the_instants(body: bytes, where: list[int]) -> None:
    parts = cut(body, where)
    one = [7] * len(parts)
    assert state(*read(parts, one)) == state(*read([body], [7]))


@settings(max_examples=300)
@given(st.lists(st.sampled_from([*EVENTS[1:4], b": ping\n\n", b"\r\n"]), max_size=6), places, st.data())
def test_an_event_arrives_with_the_part_that_ends_its_last_data_line(
    events: list[bytes], where: list[int], data: st.DataObject
) -> None:
    body = b"".join(events)
    parts = cut(body, where)
    edges = [sum(map(len, parts[: place + 1])) for place in range(len(parts))]
    holders = [next(place for place, edge in enumerate(edges) if edge > end) for end in reference(body).ends]
    portions = sorted(data.draw(st.lists(st.integers(0, len(parts)), max_size=4), label="portions"))
    chunks, source = said(*read(parts, portions=portions))
    assert chunks == [(place, holders.count(place)) for place in sorted(set(holders))]
    assert source == ("assumed" if holders else None)


@pytest.mark.parametrize("between", [[], [b": ping\n"], [b"", b": a\n", b": b\n"]])
def test_a_blank_line_that_comes_late_does_not_make_the_event_late(between: list[bytes]) -> None:
    event = sse(CHAT.text(" a"))
    parts = [event[:-1], *between, b"\n" + sse(CHAT.text(" b"))]
    answer, chunks = read(parts, portions=range(1, len(parts)))
    assert chunks.arrival_ns.tolist() == [0, 10 * len(parts) - 10]
    assert (answer.first_event_ns, answer.last_event_ns) == (0, 10 * len(parts) - 10)


def test_a_last_event_without_its_blank_line_arrived_with_its_line() -> None:
    answer, chunks = read([sse(CHAT.text(" a")), b"data: [DONE]\n", b": bye\n"], portions=[1, 2])
    assert (answer.done, answer.done_ns, chunks.arrival_ns.tolist()) == (True, 10, [0])


# Where tokens come from.


@APIS
@pytest.mark.parametrize(
    ("make", "chunks", "source"),
    [
        (lambda ev: [ev.role(), *[ev.text(" w")] * 3, ev.finish(), ev.usage(7, 3)], [(1, 1), (2, 1), (3, 1)], "events"),
        (lambda ev: [ev.text(" w"), ev.text(" w", finish="length"), ev.usage(7, 2)], [(0, 1), (1, 1)], "events"),
        (lambda ev: [ev.text(" w", usage=usage(7, n)) for n in (1, 3)], [(0, 1), (1, 2)], "chunk_usage"),
        (lambda ev: [ev.text(" w", usage=usage(7, 1)), ev.text(" w"), ev.usage(7, 2)], [(0, 1), (1, 1)], "events"),
        (lambda ev: [ev.text(" w"), ev.text(" w", usage=usage(7, 2))], [(0, 1), (1, 1)], "events"),
        (lambda ev: [ev.text(" w"), ev.finish() | {"usage": usage(7, 1)}], [(0, 1)], "events"),
        (lambda ev: [ev.text(" w"), ev.finish(), ev.chunk(None, usage=usage(7, 1))], [(0, 1)], "events"),
        (lambda ev: [ev.usage(7, 0), ev.text(" w"), ev.usage(7, 1)], [(1, 1)], "events"),
        (lambda ev: [ev.token_ids(" w", [1, 2]), ev.token_ids("", [3]), ev.usage(7, 3)], [(0, 2), (1, 1)], "token_ids"),
        (lambda ev: [ev.token_ids(" w", [1, 2]), ev.token_ids(" w", [3])], [(0, 2), (1, 1)], "token_ids"),
        (lambda ev: [ev.token_ids(" w", [1, 2]), ev.text(" w")], [(0, 1), (1, 1)], "assumed"),
        (lambda ev: [ev.text("x" * 30), ev.text("x" * 10), ev.usage(7, 8)], [(0, 6), (1, 2)], "usage_share"),
        (lambda ev: [ev.text("I"), ev.text(" am a language model"), ev.usage(7, 6)], [(0, 1), (1, 5)], "usage_share"),
        (lambda ev: [ev.text(" w"), ev.text(" w")], [(0, 1), (1, 1)], "assumed"),
        (lambda ev: [ev.text(" w"), ev.text(" w"), ev.usage(7, 0)], [(0, 1), (1, 1)], "assumed"),
        (lambda ev: [ev.text(" w"), ev.finish() | {"usage": None}], [(0, 1)], "assumed"),
        (lambda ev: [ev.chunk(None)], [], None),
    ],
)
def test_the_source_of_tokens(ev: Events, make: Callable[[Events], list[Any]], chunks: list[Any], source: str) -> None:
    answer, got = read(one_each(*make(ev)))
    assert said(answer, got) == (chunks, source)
    assert answer.done
    assert (answer.error, answer.malformed) == (None, None)


def test_a_chat_in_which_empty_texts_were_tokens() -> None:
    assert said(*read(one_each(CHAT.text(""), CHAT.text("a"), CHAT.usage(7, 2)))) == ([(0, 1), (1, 1)], "events")
    finished = one_each(CHAT.role(), CHAT.text("a"), CHAT.finish(), CHAT.usage(7, 2))
    assert said(*read(finished)) == ([(1, 1), (2, 1)], "events")


def test_tokens_without_any_text_came_with_the_empty_events() -> None:
    assert said(*read(one_each(CHAT.role(), CHAT.finish(), CHAT.usage(7, 5)))) == ([(1, 5)], "usage_share")
    assert said(*read(one_each(CHAT.role(), CHAT.finish()))) == ([], None)


@APIS
def test_a_tokenizer_counts_where_the_server_does_not(ev: Events) -> None:
    texts: list[str] = []

    def count(text: str) -> int:
        texts.append(text)
        return 8

    events = [ev.text("xxx"), ev.text(""), ev.text("x")]
    assert said(*read(one_each(*events), count=count)) == ([(0, 6), (2, 2)], "tokenizer")
    assert texts == ["xxxx"]
    assert said(*read(one_each(*events, ev.usage(7, 2)), count=count)) == ([(0, 1), (2, 1)], "events")
    assert len(texts) == 1


def test_a_tokenizer_counts_all_channels() -> None:
    events = [CHAT.reasoning("abc"), CHAT.tool_call("de", name="f"), CHAT.text("gh")]
    _, chunks = read(one_each(*events), count=len)
    assert (chunks.total, chunks.source) == (len("abcfdegh"), "tokenizer")
    assert chunks.channel.tolist() == [Channel.REASONING, Channel.TOOL, Channel.CONTENT]


@pytest.mark.parametrize("api", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("per_choice", [False, True])
def test_running_usage_of_two_choices(api: Events, per_choice: bool) -> None:
    """vLLM counts each choice for itself on the way and all together at the end."""
    running = [1, 1, 2, 2, 3, 3] if per_choice else [1, 2, 3, 4, 5, 6]
    events = [api.text(" w", index=n % 2, usage=usage(7, total)) for n, total in enumerate(running)]
    answer, chunks = read(one_each(*events, api.usage(7, 6)))
    assert chunks.tokens.tolist() == [1] * 6
    assert (answer.usage_tokens, answer.input_tokens) == (6, 7)


@APIS
def test_two_choices_in_one_event_share_it(ev: Events) -> None:
    pair = [ev.text(" w", index=n)["choices"][0] for n in (0, 1)]
    assert said(*read(one_each(ev.chunk(pair), ev.chunk(pair), ev.usage(7, 4)))) == ([(0, 2), (1, 2)], "usage_share")


# Channels.


@pytest.mark.parametrize(
    ("delta", "channel", "visible"),
    [
        ({"content": "a"}, Channel.CONTENT, True),
        ({"role": "assistant", "content": "a"}, Channel.CONTENT, True),
        ({"refusal": "a"}, Channel.CONTENT, True),
        ({"content": None, "refusal": "a"}, Channel.CONTENT, True),
        ({"content": "a", "reasoning": "b"}, Channel.CONTENT, True),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, Channel.CONTENT, True),
        ({"reasoning": "a"}, Channel.REASONING, False),
        ({"reasoning_content": "a", "content": None}, Channel.REASONING, False),
        ({"reasoning_content": "a", "content": ""}, Channel.REASONING, False),
        ({"role": "assistant", "reasoning": "a"}, Channel.REASONING, False),
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, Channel.TOOL, False),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "1"}}], "content": ""}, Channel.TOOL, False),
        ({"tool_calls": [{"index": 0}]}, Channel.TOOL, False),
        ({"tool_calls": ["odd"]}, Channel.TOOL, False),
        ({"function_call": {"name": "f", "arguments": "{}"}}, Channel.TOOL, False),
    ],
)
def test_the_channel_of_a_delta(delta: dict[str, Any], channel: Channel, visible: bool) -> None:
    for count in (None, lambda text: 1):
        answer, chunks = read(one_each(CHAT.delta(delta)), count=count)
        assert (chunks.channel.tolist(), chunks.tokens.tolist(), answer.malformed) == ([channel], [1], None)
        assert chunks.first_visible_ns == (0 if visible else None)


@pytest.mark.parametrize(
    "delta",
    [
        *(None, {}, {"role": "assistant"}, {"role": "assistant", "content": ""}, {"content": None}, {"tool_calls": []}),
        *(
            {"tool_calls": None, "function_call": None},
            {"role": "assistant", "content": None},
            {"content": []},
            {"x": 1},
        ),
    ],
)
def test_a_delta_that_says_nothing_is_no_token(delta: dict[str, Any] | None) -> None:
    answer, chunks = read(one_each(CHAT.delta(delta), CHAT.text("a"), CHAT.usage(7, 1)))
    assert said(answer, chunks) == ([(1, 1)], "events")
    assert (answer.first_event_ns, answer.malformed) == (0, None)


@APIS
@pytest.mark.parametrize("choices", [None, [], [{}], [{"index": 0}], [{"index": 0, "finish_reason": None}], [None]])
def test_choices_that_say_nothing_are_no_token(ev: Events, choices: Any) -> None:
    answer, chunks = read(one_each(ev.chunk(choices), ev.text("a"), ev.usage(7, 1)))
    assert said(answer, chunks) == ([(1, 1)], "events")
    assert answer.malformed is None


# Counts and reasons.


@APIS
def test_usage_gives_input_output_and_cached_tokens(ev: Events) -> None:
    answer, _ = read(one_each(ev.text("a"), ev.usage(7, 1, cached=4)))
    assert (answer.input_tokens, answer.usage_tokens, answer.cached_tokens) == (7, 1, 4)


@APIS
def test_usage_that_is_later_null_keeps_what_was_said(ev: Events) -> None:
    answer, _ = read(
        one_each(ev.text("a", usage=usage(7, 1, cached=4)), ev.finish() | {"usage": {"prompt_tokens": None}})
    )
    assert (answer.input_tokens, answer.usage_tokens, answer.cached_tokens) == (7, 1, 4)


@APIS
def test_the_first_finish_reason_counts(ev: Events) -> None:
    answer, _ = read(one_each(ev.text("a", finish="length"), ev.finish("stop")))
    assert answer.finish_reason == "length"
    assert read(one_each(ev.text("a")))[0].finish_reason is None


@APIS
def test_nothing_after_done_belongs_to_the_answer(ev: Events) -> None:
    late = [ev.text("b"), error("late"), ev.usage(9, 9), b"data: {broken\n\n"]
    for portions in ([], [1], [2], [3]):
        answer, chunks = read(one_each(ev.text("a"), DONE, *late), portions=portions)
        assert said(answer, chunks) == ([(0, 1)], "assumed")
        assert (answer.done_ns, answer.last_event_ns) == (10, 10)
        assert (answer.error, answer.malformed, answer.usage_tokens) == (None, None, None)


@pytest.mark.parametrize(
    "done",
    [
        *(
            DONE,
            b"data:[DONE]\n\n",
            b"data:  [DONE]\n\n",
            b"data: [DONE] \n\n",
            b"data: [DONE]\r\n\r\n",
            b"data: [DONE]\n",
        ),
        *(
            b"event: done\ndata: [DONE]\n\n",
            b"event: error\ndata: [DONE]\n\n",
            b"data: [DONE]\n\n: bye\n\n",
            b"data:  [DONE]\n\ndata: x\n\n",
            DONE + DONE,
        ),
    ],
)
def test_each_spelling_of_done(done: bytes) -> None:
    for parts in ([sse(CHAT.text("a")), done], [sse(CHAT.text("a")) + done]):
        answer, chunks = read(parts)
        assert (answer.done, answer.done_ns, chunks.total) == (True, 10 * len(parts) - 10, 1)
        assert (answer.malformed, answer.error) == (None, None)


@pytest.mark.parametrize("text", ["[DONE]", "data: [DONE]", "a[DONE]", "\n\ndata: [DONE]\n\n"])
def test_done_within_a_text_is_text(text: str) -> None:
    answer, chunks = read(one_each(CHAT.text(text), CHAT.text("b"), done=False))
    assert (answer.done, chunks.total) == (False, 2)


# Errors.


@APIS
@pytest.mark.parametrize(
    ("event", "text"),
    [
        (error("no memory"), "no memory"),
        ({"error": "no memory"}, "no memory"),
        ({"error": {"detail": "no memory"}}, "no memory"),
        ({"error": {"code": 5}}, "{'code': 5}"),
        ({"error": {}}, "{}"),
        ({"error": [1]}, "[1]"),
        ({"object": "error", "message": "no memory", "code": 500}, "no memory"),
        ({"object": "error", "code": 500}, '{"object":"error","code":500}'),
        (sse({"message": "no memory"}, event="error"), "no memory"),
        (sse(error("no memory"), event="error"), "no memory"),
        (sse("no memory", event="error"), "no memory"),
        (sse("[" * 100_000, event="error"), "[" * 200),
        (error("no\n memory"), "no memory"),
        (error("x" * 5000), "x" * 300),
    ],
)
def test_each_shape_of_an_error(ev: Events, event: Any, text: str) -> None:
    answer, chunks = read(one_each(ev.text("a"), event, ev.text("b")))
    assert answer.error == text
    assert said(answer, chunks) == ([(0, 1), (2, 1)], "assumed")
    assert answer.done


def test_the_first_error_counts() -> None:
    assert read(one_each(error("one"), sse(error("two"), event="error")))[0].error == "one"
    assert read([b"".join(one_each(error("one"), sse(error("two"), event="error")))])[0].error == "one"


@APIS
def test_an_error_beside_choices_keeps_both(ev: Events) -> None:
    answer, chunks = read(one_each(ev.text("a", finish="error") | error("no memory")))
    assert (answer.error, answer.finish_reason, chunks.total) == ("no memory", "error", 1)


@pytest.mark.parametrize("kind", ["message", "completion.chunk", "ping"])
def test_an_event_of_another_type_is_no_error(kind: str) -> None:
    answer, chunks = read(one_each(sse(CHAT.text("a"), event=kind)))
    assert (answer.error, answer.malformed, chunks.total) == (None, None, 1)


@pytest.mark.parametrize(
    "payload", ["{broken", '{"choices": 5}', "[1, 2]", "5", "word", "{}{}", "{},{}", "[" * 100_000]
)
def test_what_cannot_be_understood_is_said_and_the_rest_is_read(payload: str) -> None:
    answer, chunks = read(one_each(CHAT.text("a"), sse(payload), CHAT.text("b"), sse("worse")))
    assert said(answer, chunks) == ([(0, 1), (2, 1)], "assumed")
    assert answer.malformed is not None
    assert answer.malformed.endswith(": " + payload[:200])
    assert answer.done


def test_a_text_of_broken_utf_8_is_read_with_its_replacement() -> None:
    answer, chunks = read([sse(CHAT.text(" ?")).replace(b"?", b"\xff"), DONE], count=len)
    assert (answer.malformed, chunks.total) == (None, 2)


@APIS
@pytest.mark.parametrize(
    "change",
    [
        {"usage": []},
        {"usage": "none"},
        {"usage": {"completion_tokens": -1}},
        {"usage": {"completion_tokens": 1e99}},
        {"usage": {"completion_tokens": 2**31}},
        {"usage": {"completion_tokens": [1]}},
        {"id": 5, "created": "now", "model": None},
        {"object": 5},
        {"choices_": None},
    ],
)
def test_fields_of_wrong_types_do_not_hide_the_text(ev: Events, change: dict[str, Any]) -> None:
    answer, chunks = read(one_each(ev.text("a") | change, ev.text("b", finish="stop"), ev.usage(7, 2)))
    assert said(answer, chunks) == ([(0, 1), (1, 1)], "events")
    assert (answer.malformed, answer.error, answer.usage_tokens, answer.input_tokens) == (None, None, 2, 7)


@APIS
@pytest.mark.parametrize(
    "change",
    [{"finish_reason": 5}, {"token_ids": "x"}, {"token_ids": ["x"]}, {"logprobs": 1}, {"index": "0"}, {"message": 1}],
)
def test_choice_fields_of_wrong_types_do_not_hide_the_text(ev: Events, change: dict[str, Any]) -> None:
    event = ev.text("a")
    event["choices"][0] |= change
    answer, chunks = read(one_each(event, ev.usage(7, 1)))
    assert said(answer, chunks) == ([(0, 1)], "events")
    assert (answer.malformed, answer.finish_reason) == (None, None)


@pytest.mark.parametrize("change", [{"role": 5}, {"tool_calls": {}}, {"reasoning": 1}, {"refusal": [1]}])
def test_delta_fields_of_wrong_types_do_not_hide_the_text(change: dict[str, Any]) -> None:
    answer, chunks = read(one_each(CHAT.delta({"content": "a"} | change), CHAT.usage(7, 1)))
    assert (said(answer, chunks), answer.malformed) == (([(0, 1)], "events"), None)


def test_a_wrong_field_beside_right_ones_in_usage_loses_only_itself() -> None:
    odd = {"prompt_tokens": -7, "completion_tokens": "2", "prompt_tokens_details": {"cached_tokens": 3}}
    answer, _ = read(one_each(CHAT.text("a"), CHAT.chunk([], usage=odd)))
    assert (answer.input_tokens, answer.usage_tokens, answer.cached_tokens) == (None, 2, 3)


def test_broken_utf_8_beside_a_wrong_type_is_still_read() -> None:
    event = sse(CHAT.text(" ?") | {"usage": 5}).replace(b"?", b"\xff")
    answer, chunks = read([event, DONE])
    assert (answer.malformed, chunks.total) == (None, 1)


# Bodies that are one JSON object, or something else.


def whole(ev: Events, text: str = "a b", counts: Any = None) -> list[bytes]:
    body = json.dumps(ev.whole(text, counts)).encode()
    return [body[:5], body[5:50], body[50:]]


@APIS
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("portions", [[], [1], [0, 1, 2]])
def test_a_whole_answer(ev: Events, stream: bool, portions: list[int]) -> None:
    answer, chunks = read(whole(ev, counts=usage(7, 20, cached=4)), stream=stream, portions=portions)
    assert said(answer, chunks) == ([(2, 20)], "usage_share")
    assert (answer.input_tokens, answer.usage_tokens, answer.cached_tokens) == (7, 20, 4)
    assert (answer.done, answer.finish_reason, answer.malformed, answer.error) == (True, "stop", None, None)
    assert (answer.first_event_ns, answer.last_event_ns, chunks.first_visible_ns) == (20, 20, 20)


@APIS
def test_a_whole_answer_without_usage(ev: Events) -> None:
    assert said(*read(whole(ev), stream=False)) == ([(2, 1)], "assumed")
    assert said(*read(whole(ev), stream=False, count=len)) == ([(2, 3)], "tokenizer")


@APIS
def test_whitespace_before_a_whole_answer(ev: Events) -> None:
    answer, chunks = read([b" ", b"\r\n", *whole(ev)], portions=[1, 2])
    assert (answer.done, chunks.arrival_ns.tolist()) == (True, [40])


def test_a_whole_answer_of_a_tool_call() -> None:
    event = CHAT.whole("")
    event["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    answer, chunks = read([json.dumps(event).encode()], stream=False)
    assert (answer.done, chunks.channel.tolist(), chunks.first_visible_ns) == (True, [Channel.TOOL], None)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("body", "told", "malformed"),
    [
        (b'{"error": {"message": "bad key"}}', "bad key", None),
        (b'{"object": "error", "message": "bad key"}', "bad key", None),
        (b'{"detail": "Not Found"}', None, 'an answer without choices: {"detail": "Not Found"}'),
        (b'{"choices": []}', None, 'an answer without choices: {"choices": []}'),
        (b'{"choices": [', None, "neither events nor JSON"),
        (b"[1]", None, "an answer of unknown form"),
        (b"<html>\n <h1>502 Bad Gateway</h1>", None, "neither events nor JSON"),
    ],
)
def test_a_body_that_is_no_answer(stream: bool, body: bytes, told: str | None, malformed: str | None) -> None:
    answer, chunks = read([body[:3], body[3:]], stream=stream, portions=[1])
    assert (answer.error, answer.done, chunks.total) == (told, False, 0)
    assert (answer.malformed or "").startswith(malformed or "")
    assert (answer.malformed is None) == (malformed is None)
    if malformed and malformed.startswith("neither"):
        assert answer.malformed is not None
        assert " ".join(body.decode().split()) in answer.malformed


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("parts", [[], [b""], [b" \r\n"], [b"", b"\n"]])
def test_an_empty_body(stream: bool, parts: list[bytes]) -> None:
    answer, chunks = read(parts, stream=stream)
    assert (answer.done, answer.error, answer.malformed, chunks.total) == (False, None, None, 0)
    assert (answer.first_event_ns, answer.last_event_ns) == (None, None)


# Sums.

pieces = st.sampled_from(
    [
        *(CHAT.role(), CHAT.text(" a"), CHAT.text(" longer"), CHAT.text(""), CHAT.reasoning("r"), CHAT.tool_call("1")),
        *(CHAT.text(" n", usage=usage(7, n)) for n in range(4)),
        *(CHAT.token_ids(" i", [1] * n) for n in range(3)),
        *(CHAT.finish(), CHAT.delta(None), CHAT.chunk(None), CHAT.text(" x", index=1)),
    ]
)


@settings(max_examples=300)
@given(st.lists(pieces, max_size=10), st.integers(1, 30))
def test_tokens_sum_to_usage_whenever_a_text_came(events: list[Any], total: int) -> None:
    answer, chunks = read(one_each(*events, CHAT.usage(7, total)))
    texts = any(
        (choice["delta"] or {}).get(key)
        for event in events
        for choice in event["choices"] or []
        for key in ("content", "reasoning_content", "tool_calls")
    )
    assert answer.usage_tokens == total
    assert chunks.total == total or not texts


# The short cut through the middle of a stream.

odd_parts = st.sampled_from(
    [
        *(b"data: 1,2\n\n", b"data: [DONE]\n\n", b"\xef\xbb\xbfdata: {}\n\n", b'data: {"choices":\n\n', b": ping\n\n"),
        *(b"data: {}\r\n\r\n", b"data: {}\n\ndata: {}\n\n", b"event: error\ndata: {}\n\n", b"data: {}\n", b"\n"),
        *(b'data: {"error": "no"}\n\n', b'data: {"choices": [{"text": "t"}]}\n\n', b'data: {"choices": []}\n\n'),
        *(b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n', b'data: {"choices": [{"delta": {}}, {}]}\n\n'),
        b'data: {"choices": [{"delta": {"content": "a", "refusal": "b"}}]}\n\n',
    ]
)
plain_parts = st.sampled_from(
    [sse(CHAT.text(" a")), sse(CHAT.text(" longer \u2028 \U0001f600")), sse(CHAT.text(" u", usage=usage(7, 4)))]
)
counted_parts = st.integers(1, 30).map(lambda total: sse(CHAT.text(" u", usage=usage(7, total))))


@settings(max_examples=500)
@given(
    st.one_of(st.lists(parts, min_size=6, max_size=20) for parts in (plain_parts, counted_parts)),
    st.lists(st.tuples(st.integers(0, 20), st.one_of(odd_parts, pieces.map(sse))), max_size=3),
    st.lists(st.integers(0, 3), min_size=30, max_size=30),
)
def test_a_stream_fed_at_once_says_what_it_says_part_by_part(
    parts: list[bytes], odd: list[tuple[int, bytes]], gaps: list[int]
) -> None:
    for place, part in odd:
        parts.insert(place, part)
    stamps = [1 + sum(gaps[: place + 1]) for place in range(len(parts))]
    assert state(*read(parts, stamps)) == state(*read(parts, stamps, portions=range(1, len(parts))))


def test_the_short_cut_is_taken_where_events_are_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    monkeypatch.setattr(Answer, "_events", lambda self, datas, *_: decoded.append(len(datas)))
    read(one_each(CHAT.role(), *[CHAT.text(" a")] * 50, CHAT.usage(7, 50)))
    assert decoded == [1, 51, 1]  # one without text among them, and all are looked at one by one
    decoded.clear()
    _, chunks = read(one_each(CHAT.role(), *[CHAT.text(" a")] * 50))
    assert (decoded, chunks.total) == ([1, 1], 50)
    decoded.clear()
    counted = [CHAT.text(" a", usage=usage(7, 2 * n)) for n in range(1, 51)]
    answer, chunks = read(one_each(CHAT.role(), *counted))
    assert (decoded, chunks.total, answer.usage_tokens, answer.input_tokens) == ([1, 1], 100, 100, 7)
