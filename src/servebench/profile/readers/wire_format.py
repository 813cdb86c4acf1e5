"""Protocol Buffers' wire format: the fields of an encoded message, and a message of fields. No schema, no library."""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Value = int | memoryview


def scan(data: bytes | memoryview) -> Iterator[tuple[int, Value]]:
    """Yield each field's number and value, in the order of the file.

    Varints and fixed-width numbers come as unsigned integers (`signed` and `double` read them otherwise), strings,
    bytes and nested messages as a view of `data`.

    Raises:
        ValueError: this is no encoded message, or it is cut short.
    """
    view = memoryview(data)
    at, end = 0, len(view)
    try:
        while at < end:
            key, at = varint(view, at)
            number, kind = key >> 3, key & 7
            if kind == VARINT:
                value: Value
                value, at = varint(view, at)
            elif kind == BYTES:
                size, at = varint(view, at)
                value, at = _piece(view, at, size), at + size
            elif kind in (FIXED64, FIXED32):
                size = 8 if kind == FIXED64 else 4
                value, at = int.from_bytes(_piece(view, at, size), "little"), at + size
            else:
                raise ValueError(f"wire type {kind} at byte {at}")
            yield number, value
    except IndexError:
        raise ValueError("the message is cut short") from None


def varint(view: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the base-128 number at `at`, and where it ends. Raises IndexError at the end of the view."""
    byte = view[at]
    if byte < 0x80:  # most are this short
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = view[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7


def signed(value: int) -> int:
    """An int64 that was read as unsigned."""
    return value - (1 << 64) if value >= 1 << 63 else value


def double(value: int) -> float:
    """A double whose eight bytes were read as unsigned."""
    return float(struct.unpack("<d", struct.pack("<Q", value))[0])


def text(value: Value) -> str:
    """A string field; bytes that are not UTF-8 are replaced."""
    return bytes(value).decode("utf-8", "replace") if isinstance(value, memoryview) else ""


def field(number: int, value: int | str | bytes) -> bytes:
    """Encode one field: integers as varint (negative ones as int64), the rest with its length."""
    if isinstance(value, int):
        return _encoded(number << 3 | VARINT) + _encoded(value & (1 << 64) - 1)
    data = value.encode() if isinstance(value, str) else value
    return _encoded(number << 3 | BYTES) + _encoded(len(data)) + data


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _piece(view: memoryview, at: int, size: int) -> memoryview:
    if at + size > len(view):
        raise IndexError
    return view[at : at + size]
