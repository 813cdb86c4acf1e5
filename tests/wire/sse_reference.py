"""Event streams as the standard reads them: what the tests hold the parser and the answers to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

BOM = b"\xef\xbb\xbf"


@dataclass
class Parsed:
    """Events with the offset of the end mark of their last data line and their type."""

    data: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    types: dict[int, bytes] = field(default_factory=dict)
    comments: int = 0


def reference(body: bytes) -> Parsed:
    """The standard's algorithm (HTML, "Interpreting an event stream"), on a whole body, one byte at a time.

    It differs in one point, as the parser does: at the end of the body an event is kept whose lines are complete.
    """
    parsed = Parsed()
    buffer, kind, end = b"", b"", -1

    def dispatch() -> None:
        nonlocal buffer, kind
        if buffer:
            if kind not in (b"", b"message"):
                parsed.types[len(parsed.data)] = kind
            parsed.data.append(buffer[:-1])  # without the last line feed
            parsed.ends.append(end)
        buffer, kind = b"", b""

    for line, mark in lines(body):
        if not line:
            dispatch()
        elif line.startswith(b":"):
            parsed.comments += 1
        else:
            name, value = line, b""
            if b":" in line:
                name, value = line[: line.index(b":")], line[line.index(b":") + 1 :]
                value = value[1:] if value.startswith(b" ") else value
            if name == b"data":
                buffer, end = buffer + value + b"\n", mark
            elif name == b"event":
                kind = value
    dispatch()
    return parsed


def lines(body: bytes) -> Iterator[tuple[bytes, int]]:
    """Each complete line and the offset of the mark that ends it."""
    start = at = len(BOM) if body.startswith(BOM) else 0
    while at < len(body):
        if body[at] in b"\r\n":
            yield body[start:at], at
            at += body[at : at + 2] == b"\r\n"
            start = at + 1
        at += 1


def cut(body: bytes, places: Iterable[int]) -> list[bytes]:
    """`body` in pieces, cut before the bytes at `places`; a place that comes twice gives an empty piece."""
    edges = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    return [body[a:b] for a, b in pairwise(edges)]
