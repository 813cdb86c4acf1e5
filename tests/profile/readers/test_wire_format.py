from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.profile.readers.wire_format import double, field, scan, signed, text


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**29 - 1))
def test_integers_survive(value: int, number: int) -> None:
    ((found, encoded),) = scan(field(number, value))
    assert found == number
    assert isinstance(encoded, int)
    assert signed(encoded) == value


@given(st.text(), st.binary())
def test_texts_and_bytes_survive(string: str, data: bytes) -> None:
    (_, first), (_, second) = scan(field(1, string) + field(2, data))
    assert text(first) == string
    assert bytes(second) == data


def test_known_encoding() -> None:
    # the example of the documentation of Protocol Buffers: field 1 is 150
    assert field(1, 150) == b"\x08\x96\x01"
    assert list(scan(b"\x08\x96\x01")) == [(1, 150)]


def test_fixed_widths() -> None:
    (_, eight), (_, four) = scan(b"\x09" + struct.pack("<d", -2.5) + b"\x15" + struct.pack("<I", 77))
    assert double(eight) == -2.5
    assert four == 77


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_cut_message_is_an_error(cut: int) -> None:
    whole = field(3, "some text") + field(300, 1 << 40)
    with pytest.raises(ValueError, match="cut short"):
        list(scan(whole[: len(whole) - cut]))


def test_groups_are_no_messages_of_today() -> None:
    with pytest.raises(ValueError, match="wire type 3"):
        list(scan(b"\x0b"))


def test_a_broken_text_is_shown() -> None:
    ((_, value),) = scan(b"\x0a\x02\xff!")
    assert text(value) == "\ufffd!"
