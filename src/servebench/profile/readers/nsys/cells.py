"""Rows of an SQLite table decoded straight from its pages, all rows of many pages at once.

A row is a cell: varints of its length, its number and its header's length, a type per column (a varint, too), and the
values, integers being big-endian and as short as they may (https://www.sqlite.org/fileformat2.html, 1.6 and 2.1).
Through SQL, eight million rows take a minute, nearly all of it for making Python's integers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servebench.profile.readers.nsys.pages import LEAF, SPARE, Bytes, DamageError, Ints
from servebench.profile.timeline import NONE

Offsets = NDArray[np.int32]
WIDEST = 128  # a type from here on takes more than one byte
OVERFLOW = 35  # a row longer than a page's usable bytes less these goes on elsewhere
ALLOWED = np.zeros(256, np.bool_)
ALLOWED[[0, 1, 2, 3, 4, 5, 6, 8, 9]] = True  # types of integers, and of NULL
SIZES = np.zeros(256, np.int32)  # of the value, by type
SIZES[:8] = (0, 1, 2, 3, 4, 6, 8, 8)
SIZES[12:] = (np.arange(12, 256) - 12) // 2
SHIFTS = (64 - 8 * np.minimum(SIZES, 8)).clip(0, 63).astype(np.int64)
CONSTANTS = np.zeros(256, np.int64)  # values that take no room
CONSTANTS[[0, 9]] = (NONE, 1)


class UnusualRowsError(Exception):
    """Rows that this cannot decode, though SQLite can: texts among the columns, or more than a page of them."""


def decode(data: Bytes, page: int, usable: int, columns: dict[int, str]) -> dict[str, Ints]:
    """Columns of all rows of some leaf pages.

    Args:
        data: the pages, as `Pages.read` returns them.
        page, usable: bytes of one, and those of them that hold data.
        columns: name of each wanted column by its place in the table.

    Raises:
        UnusualRowsError: SQLite must read these.
        DamageError: nobody can.
    """
    last = max(columns)
    cells = cells_of(data, page)
    length, at = varint(data, cells)
    at = after(data, at)
    header, ends = data[at].astype(np.int32), at + length
    if (length > usable - OVERFLOW).any() or (header >= WIDEST).any() or (header < last + 2).any():
        raise UnusualRowsError
    if (ends > (cells // page + 1) * page).any() or (header > length).any():
        raise DamageError("a row is longer than its page")
    types = np.lib.stride_tricks.sliding_window_view(data, last + 1)[at + 1]
    if (types >= WIDEST).any():
        raise UnusualRowsError
    return values_of(data, types, at + header, ends, columns)


def first_and_last(data: Bytes, page: int) -> tuple[int, int]:
    """Numbers of the first and the last row of some leaf pages."""
    cells = cells_of(data, page)
    first, last = varint(data, after(data, cells[[0, -1]]))[0].tolist()
    return first, last


def cells_of(data: Bytes, page: int) -> Offsets:
    """Where each row begins in `data`."""
    count = (data.size - SPARE) // page
    whole = data[: count * page].reshape(count, page)
    numbers = whole[:, 3:5].copy().view(">u2")[:, 0].astype(np.int32)
    if (whole[:, 0] != LEAF).any() or (numbers > (page - 8) // 2).any():
        raise DamageError("a page of rows makes no sense")
    base = np.repeat(np.arange(count, dtype=np.int32) * page, numbers)
    first = np.repeat(np.cumsum(numbers, dtype=np.int32) - numbers, numbers)
    place = base + 8 + 2 * (np.arange(base.size, dtype=np.int32) - first)
    pointer = data[place].astype(np.int32) << 8 | data[place + 1]
    if (pointer >= page).any():
        raise DamageError("a row lies outside its page")
    cells: Offsets = base + pointer
    return cells


def varint(data: Bytes, at: Offsets) -> tuple[Ints, Offsets]:
    """A number of up to eight groups of seven bits at each place, and where it ends."""
    ends = after(data, at)
    value = np.zeros(at.size, np.int64)
    for place in range(int((ends - at).max(initial=0))):
        value = np.where(at + place < ends, value << 7 | data[at + place] & 0x7F, value)
    return value, ends


def after(data: Bytes, at: Offsets) -> Offsets:
    """Where the numbers at these places end: each but the last of their bytes has its highest bit set."""
    at = at + 1
    more = data[at - 1] >= 0x80
    for _ in range(7):
        if not more.any():
            return at
        at += more
        more &= data[at - 1] >= 0x80
    raise UnusualRowsError


def values_of(data: Bytes, types: Bytes, at: Offsets, ends: Ints, columns: dict[int, str]) -> dict[str, Ints]:
    """The wanted columns of rows whose values begin at `at`, and which are over at `ends`."""
    eight: NDArray[np.int64] = np.ndarray((data.size - 7,), ">i8", data, strides=(1,))
    found = {}
    for place, kinds in enumerate(np.ascontiguousarray(types.T)):
        kind = one_for_all(kinds)
        sizes = SIZES[kind]
        if place in columns:
            found[columns[place]] = integers(eight, at, kind, sizes)
        if sizes.any():
            at = at + sizes
    if (at > ends).any():
        raise DamageError("a row is longer than it says")
    return found


def integers(eight: NDArray[np.int64], at: Offsets, kind: NDArray[np.intp], sizes: Offsets) -> Ints:
    """The values at some places: eight bytes each, those that are not its own shifted out; or what takes no bytes."""
    if not ALLOWED[kind].all():
        raise UnusualRowsError
    if not sizes.any():
        return np.broadcast_to(CONSTANTS[kind], at.shape)
    value = eight[at].astype(np.int64)
    value >>= SHIFTS[kind]
    return value if sizes.all() else np.where(sizes == 0, CONSTANTS[kind], value)


def one_for_all(kinds: Bytes) -> NDArray[np.intp]:
    """The types as indices, only one where all are equal, as they are in most columns: that saves most of the time."""
    some = kinds[:1] if kinds.size and (kinds == kinds[0]).all() else kinds
    return some.astype(np.intp)
