from __future__ import annotations

import pytest

from servebench.profile.tools.hpack import decode_headers, encode_headers


def test_what_is_encoded_is_decoded() -> None:
    fields = {":path": "/a.B/C", "te": "trailers"}
    assert decode_headers(encode_headers(fields.items())) == fields


def test_literals_of_each_kind() -> None:
    # RFC 7541, C.2.1 (with incremental indexing) and C.2.3 (never indexed)
    assert decode_headers(bytes.fromhex("400a637573746f6d2d6b65790d637573746f6d2d686561646572")) == {
        "custom-key": "custom-header"
    }
    assert decode_headers(bytes.fromhex("100870617373776f726406736563726574")) == {"password": "secret"}


def test_fields_of_the_tables_and_huffman_codes_are_passed_over() -> None:
    # C.2.2 has its name in the static table, C.2.4 all of it; C.4.1 has a value in Huffman's code
    block = bytes.fromhex("040c2f73616d706c652f70617468") + b"\x82" + bytes.fromhex("418cf1e3c2e5f23a6ba0ab90f4ff")
    assert decode_headers(block + encode_headers([("grpc-status", "5")])) == {"grpc-status": "5"}


def test_long_numbers() -> None:
    long = b"\x00\x01a\x7f" + bytes([0x80 | (300 - 127) & 0x7F, (300 - 127) >> 7]) + b"x" * 300
    assert decode_headers(b"\x3f\xe1\x1f" + long) == {"a": "x" * 300}  # first the table's size: 4096


@pytest.mark.parametrize("block", [b"\x00", b"\x00\x05ab", b"\x3f\xff"])
def test_a_cut_block_is_an_error(block: bytes) -> None:
    with pytest.raises(ValueError, match="cut short"):
        decode_headers(block)
