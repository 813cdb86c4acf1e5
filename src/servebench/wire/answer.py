"""Turns the stamped bytes of one response into tokens and instants, after they were received.

The body may be fed in several portions, so that a long stream need not be kept whole; nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from servebench.wire.dialects.base import Choice, Delta, Event, PlainEvent, Usage
from servebench.wire.sse import SSEParser
from servebench.wire.tokens import Chunks, EventTokens, count_tokens

CONTENT, REASONING, TOOL = 0, 1, 2
_NONE, _WEAK, _FINISH, _STRONG = 0, 1, 2, 3
_DONE = b"[DONE]"
_LEAST_RUN = 8  # fewer parts than this are not worth a look at what they have in common
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the last for nesting without end

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

_decode_many = msgspec.json.Decoder(list[Event]).decode
_decode_plain = msgspec.json.Decoder(list[PlainEvent]).decode
_decode_one = msgspec.json.Decoder(Event).decode


class Answer:
    """What a response said. Instants are CLOCK_REALTIME ns, None where the event did not happen.

    Attributes:
        done: `[DONE]` was seen (or a whole JSON answer was read); nothing after it belongs to the answer.
        done_ns: arrival of `[DONE]`.
        finish_reason: of the first choice that gave one.
        error: text of an error object inside the stream.
        malformed: what could not be understood, first instance.
        first_event_ns: the first event of any kind.
        last_event_ns: the last event of any kind.
        input_tokens, cached_tokens, usage_tokens: from `usage`.
    """

    def __init__(self, stream: bool, count: Callable[[str], int] | None = None) -> None:
        """Expect events when `stream`; `count` is a local tokenizer's count, used when the server says nothing."""
        self.stream = stream
        self._count = count
        self._texts: list[str] = []
        self.done = False
        self.done_ns: int | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.malformed: str | None = None
        self.first_event_ns: int | None = None
        self.last_event_ns: int | None = None
        self.input_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.usage_tokens: int | None = None
        self._tokens = EventTokens()
        self._sse = SSEParser()
        self._offset = 0  # body bytes before the portion being fed
        self._whole: list[bytes] = []
        self._pending_ns = 0  # arrival of the last data line of an event whose blank line has not come
        self._last_stamp: int | None = None
        self._sniffed = False

    @property
    def comments(self) -> int:
        """Comment lines seen (keep-alive pings)."""
        return self._sse.comments

    def feed(self, parts: Sequence[bytes], stamps: Sequence[int]) -> None:
        """Take body pieces with the arrival (ns) of the read that brought each."""
        if not parts:
            return
        self._last_stamp = stamps[-1]
        if len(parts) < _LEAST_RUN or self._count is not None:
            self._portion(parts, stamps)
            return
        self._portion(parts[:1], stamps[:1])  # the first often has a role, and the last the end
        self._run(parts[1:-1], stamps[1:-1])
        self._portion(parts[-1:], stamps[-1:])

    def _run(self, parts: Sequence[bytes], stamps: Sequence[int]) -> None:
        """The middle of a stream, most of its cost: quick where each part is one event and each event only text."""
        datas = self._sse.feed_pieces(parts) if self.stream and not self.done else None
        if datas is None:
            self._portion(parts, stamps)
            return
        self._sniffed = True
        self._offset += sum(map(len, parts))
        events = _decode_plain_run(datas)
        if events is None:
            self._events(datas, list(stamps), {})
            return
        self.first_event_ns = self.first_event_ns or stamps[0]
        self.last_event_ns = stamps[-1]
        lengths = [len(event.choices[0].delta.content) for event in events]
        totals = [event.usage.completion_tokens for event in events if event.usage is not None]
        if (usage := events[-1].usage) is not None:
            self.input_tokens, self.usage_tokens = usage.prompt_tokens, usage.completion_tokens
        self._tokens.add_plain(stamps, lengths, map(len, datas), totals)

    def _portion(self, parts: Sequence[bytes], stamps: Sequence[int]) -> None:
        """Body of any form."""
        if not self.stream:
            self._whole += parts
            return
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if not self._sniffed and body.strip():
            self._sniffed = True
            if body.lstrip()[:1] in (b"{", b"<", b"["):  # JSON or HTML where events were asked for
                self.stream = False
                self._whole += parts
                return
        datas, ends, types = self._sse.feed(body)
        if datas:
            self._events(datas, self._arrivals(parts, stamps, ends), types)
        pending = self._sse.pending_end
        if pending is not None and pending >= self._offset:
            self._pending_ns = self._arrivals(parts, stamps, [pending])[0]
        self._offset += len(body)

    def finish(self) -> Chunks:
        """Close the body and return the token-bearing chunks."""
        if self.stream:
            datas, _, types = self._sse.finish()
            if datas:
                self._events(datas, [self._pending_ns], types)
        elif self._whole:
            self._whole_answer()
        if self.usage_tokens == 0 and _STRONG in self._tokens.strength:
            self.usage_tokens = None  # text came, so this is no count
        tokenized = self._count("".join(self._texts)) if self._count and self.usage_tokens is None else None
        return count_tokens(self._tokens, self.usage_tokens, tokenized)

    def _arrivals(self, parts: Sequence[bytes], stamps: Sequence[int], ends: Sequence[int]) -> list[int]:
        """The arrival of the piece that holds each offset of `ends`; the first may lie in a portion before this one."""
        if ends[0] < self._offset:
            return [self._pending_ns, *(self._arrivals(parts, stamps, ends[1:]) if len(ends) > 1 else ())]
        if len(parts) == len(ends) == 1:
            return [stamps[0]]
        edges = np.fromiter(map(len, parts), np.int64, len(parts)).cumsum()
        places = edges.searchsorted(np.array(ends, np.int64) - self._offset, "right")
        return [stamps[place] for place in places.tolist()]

    def _events(self, datas: list[bytes], arrivals: list[int], types: dict[int, bytes]) -> None:
        if self.done:
            return
        if self.first_event_ns is None:
            self.first_event_ns = arrivals[0]
        self.last_event_ns = arrivals[-1]
        if datas[-1].strip() == _DONE or _DONE in datas:
            datas, arrivals = self._until_done(datas, arrivals)
        events = _decode_together(datas)
        if events is None:
            datas, arrivals = self._until_done(datas, arrivals)
            events = [self._decode(data) for data in datas]
        for place, kind in types.items():
            if kind == b"error" and place < len(events):
                _make_error(events[place], datas[place])
        self._read(events, arrivals, datas)

    def _until_done(self, datas: list[bytes], arrivals: list[int]) -> tuple[list[bytes], list[int]]:
        """The events before `[DONE]`, if one of them is that."""
        for place, data in enumerate(datas):
            if data.strip() == _DONE:
                self.done = True
                self.done_ns = self.last_event_ns = arrivals[place]
                return datas[:place], arrivals[:place]
        return datas, arrivals

    def _decode(self, data: bytes) -> Event:
        mended = data.decode("utf-8", "replace").encode()  # as the event-stream standard reads broken UTF-8
        try:
            return _decode_one(mended)
        except msgspec.ValidationError as problem:
            event, reason = _lenient(mended), f"an answer of unknown form ({problem})"
        except _UNREADABLE as problem:
            event, reason = None, f"neither events nor JSON ({problem})"
        if event is None and data.strip():  # an event without data is a heartbeat
            self.malformed = self.malformed or f"{reason}: {_text(data)}"
        return event or Event()

    def _read(self, events: list[Event], arrivals: list[int], datas: list[bytes]) -> None:
        add = self._tokens.add
        plain = self._count is None
        for event, arrival, data in zip(events, arrivals, datas, strict=True):
            choices = event.choices
            usage = event.usage
            if usage is not None:
                self._usage(usage)
            if choices:
                choice = choices[0]
                delta = choice.delta
                if (
                    plain
                    and delta is not None
                    and delta.content
                    and usage is None
                    and choice.token_ids is None
                    and len(choices) == 1
                    and event.error is None
                ):
                    add(arrival, _STRONG, CONTENT, len(delta.content), len(data))  # nearly every event
                    if choice.finish_reason is not None:
                        self.finish_reason = self.finish_reason or choice.finish_reason
                else:
                    self._choices(choices, usage, arrival, len(data))
                    if event.error is not None:
                        self.error = self.error or _error_text(event.error)
            elif event.error is not None:
                self.error = self.error or _error_text(event.error)
            elif event.object == "error":
                self.error = self.error or _error_text(event.message or _text(data))

    def _choices(self, choices: list[Choice], usage: Usage | None, arrival: int, size: int) -> None:
        strength, channel, length, ids = _NONE, CONTENT, 0, None
        for choice in choices:
            one, where, piece = _weigh(choice)
            if one > strength:
                strength, channel = one, where
            length += len(piece)
            if self._count is not None:
                self._texts.append(piece)
            if choice.token_ids is not None:
                ids = (ids or 0) + len(choice.token_ids)
            if choice.finish_reason is not None:
                self.finish_reason = self.finish_reason or choice.finish_reason
        total = usage.completion_tokens if usage is not None else None
        if strength != _NONE or ids or total is not None:
            self._tokens.add(arrival, strength, channel, length, size, ids, total)

    def _usage(self, usage: Usage) -> None:
        if usage.prompt_tokens is not None:
            self.input_tokens = usage.prompt_tokens
        if usage.completion_tokens is not None:
            self.usage_tokens = usage.completion_tokens
        details = usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            self.cached_tokens = details.cached_tokens

    def _whole_answer(self) -> None:
        """A body that is one JSON object: all tokens arrived with its last byte."""
        body = b"".join(self._whole)
        if not body.strip():
            return
        event = self._decode(body)
        if self.malformed is not None:
            return
        assert self._last_stamp is not None
        self.first_event_ns = self.last_event_ns = self._last_stamp
        for choice in event.choices or ():
            choice.delta = choice.delta or choice.message
        self._read([event], [self._last_stamp], [body])
        self.done = bool(event.choices)
        if not self.done and self.error is None:
            self.malformed = f"an answer without choices: {_text(body)}"


def _decode_together(datas: list[bytes]) -> list[Event] | None:
    """All events by one call, which is much cheaper than one by one; None when any of them is not what it should be."""
    try:
        events = _decode_many(b"[" + b",".join(datas) + b"]")
    except _UNREADABLE:
        return None
    return events if len(events) == len(datas) else None  # else one holds several JSON values


def _decode_plain_run(datas: list[bytes]) -> list[PlainEvent] | None:
    """The events, when every one is plain, and all or none of them have a running usage."""
    try:
        events = _decode_plain(b"[" + b",".join(datas) + b"]")
    except _UNREADABLE:
        return None
    counted = sum(event.usage is not None for event in events)
    return events if len(events) == len(datas) and counted in (0, len(datas)) else None


def _weigh(choice: Choice) -> tuple[int, int, str]:
    """How surely a choice carries a token, on which channel, and its text."""
    delta = choice.delta
    if delta is None:
        if choice.text:
            return _STRONG, CONTENT, choice.text
        if choice.text is None:
            return _NONE, CONTENT, ""
        return (_WEAK if choice.finish_reason is None else _FINISH), CONTENT, ""
    if delta.content or delta.refusal:
        return _STRONG, CONTENT, (delta.content or "") + (delta.refusal or "")
    reasoning = delta.reasoning or delta.reasoning_content
    if reasoning:
        return _STRONG, REASONING, reasoning
    if delta.tool_calls or delta.function_call:
        return _STRONG, TOOL, _tool_text(delta)
    if delta.role is not None:
        return _NONE, CONTENT, ""
    if choice.finish_reason is not None:
        return _FINISH, CONTENT, ""
    empty = delta.content == "" or delta.reasoning == "" or delta.reasoning_content == ""
    return (_WEAK if empty else _NONE), CONTENT, ""


def _tool_text(delta: Delta) -> str:
    texts = []
    for call in [*(delta.tool_calls or ()), {"function": delta.function_call}]:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            texts.append(f"{function.get('name') or ''}{function.get('arguments') or ''}")
    return "".join(texts) or "?"


def _lenient(data: bytes) -> Event | None:
    """Read an event whose JSON is sound but whose fields have unexpected types, keeping what can be kept.

    None for what cannot be an event at all: no object, or choices that are no list.
    """
    try:
        raw = msgspec.json.decode(data)
    except _UNREADABLE:
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("choices"), list | None):
        return None
    event = _kept(raw, Event)
    event.usage = _kept(raw["usage"], Usage) if isinstance(raw.get("usage"), dict) else None
    event.choices = [_lenient_choice(choice) for choice in raw.get("choices") or () if isinstance(choice, dict)]
    return event


def _lenient_choice(raw: dict[str, Any]) -> Choice:
    choice = _kept(raw, Choice)
    for name in ("delta", "message"):
        part = raw.get(name)
        if isinstance(part, dict):
            content = part.get("content")
            if isinstance(content, list):  # content parts
                content = "".join(str(p.get("text", "")) for p in content if isinstance(p, dict))
            setattr(choice, name, _kept(part | {"content": content}, Delta))
    return choice


def _kept(raw: dict[str, Any], kind: type[_Struct]) -> _Struct:
    """The fields of `raw` whose types are right, or can be read as such ("8" for a number)."""
    fields = {}
    for field in msgspec.structs.fields(kind):
        if field.name in raw:
            try:
                fields[field.name] = msgspec.convert(raw[field.name], field.type, strict=False)
            except msgspec.ValidationError:
                continue
    return kind(**fields)


def _make_error(event: Event, data: bytes) -> None:
    """Take what `event: error` announced for an error, whatever its data look like."""
    if event.error is None:
        event.error = event.message or _text(data)


def _error_text(error: Any) -> str:
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return " ".join(str(error)[:300].split())


def _text(data: bytes) -> str:
    return " ".join(data[:200].decode("utf-8", "replace").split())
