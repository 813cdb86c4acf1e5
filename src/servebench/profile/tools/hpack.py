"""Header compression of HTTP/2 (RFC 7541), as far as one gRPC call needs it.

We send every field as a literal. From what we receive only gRPC's own fields matter: they are in no static table, so
with a dynamic table of size 0 their names and values come as literals, too.
"""

from __future__ import annotations

from collections.abc import Iterable

HUFFMAN = 0x80
INDEXED, INCREMENTAL, RESIZE = 0x80, 0x40, 0x20


def encode_headers(fields: Iterable[tuple[str, str]]) -> bytes:
    """A header block of literals that no one keeps in a table; names and values of at most 126 bytes."""
    return b"".join(b"\x00" + _literal(name) + _literal(value) for name, value in fields)


def decode_headers(block: bytes) -> dict[str, str]:
    """Fields that a block spells out; those whose name or value is in a table or in Huffman's code are left out.

    Raises:
        ValueError: the block is cut short.
    """
    found: dict[str, str] = {}
    at = 0
    try:
        while at < len(block):
            first = block[at]
            if first & INDEXED:
                _, at = _number(block, at, 7)
            elif first & INCREMENTAL or not first & RESIZE:
                name, value, at = _field(block, at, 6 if first & INCREMENTAL else 4)
                if name is not None and value is not None:
                    found[name] = value
            else:
                _, at = _number(block, at, 5)
    except IndexError:
        raise ValueError("a header block is cut short") from None
    return found


def _field(block: bytes, at: int, bits: int) -> tuple[str | None, str | None, int]:
    index, at = _number(block, at, bits)
    name = None
    if index == 0:
        name, at = _string(block, at)
    value, at = _string(block, at)
    return name, value, at


def _string(block: bytes, at: int) -> tuple[str | None, int]:
    coded = block[at] & HUFFMAN
    size, at = _number(block, at, 7)
    if at + size > len(block):
        raise IndexError
    return None if coded else block[at : at + size].decode("latin-1"), at + size


def _number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """An integer with a prefix of some bits (section 5.1), and where it ends."""
    limit = (1 << bits) - 1
    value = block[at] & limit
    at += 1
    if value < limit:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _literal(text: str) -> bytes:
    data = text.encode("latin-1")
    return bytes([len(data)]) + data
