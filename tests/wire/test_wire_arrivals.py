"""Arrivals: which read brought which byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.wire.arrivals import Arrivals
from servebench.wire.exchange import Exchange


def exchange_of(parts: list[bytes]) -> Exchange:
    """An exchange whose parts came 10 ns apart."""
    exchange = Exchange()
    exchange.parts, exchange.stamps = parts, [1000 + 10 * place for place in range(len(parts))]
    exchange.sent_ns, exchange.headers_ns = 900, 950
    return exchange


@given(st.lists(st.binary(max_size=5), max_size=10))
def test_each_byte_came_with_its_part(parts: list[bytes]) -> None:
    arrivals = Arrivals.of(exchange_of(parts))
    body = b"".join(parts)
    assert arrivals.body == body
    assert len(arrivals.ends) == len(arrivals.stamps_ns) == len(parts)
    brought = [1000 + 10 * place for place, part in enumerate(parts) for _ in part]
    assert [arrivals.at(offset) for offset in range(len(body))] == brought
    for beyond in (len(body), len(body) + 5):
        with pytest.raises(IndexError):
            arrivals.at(beyond)


@given(st.integers(max_value=-1))
def test_an_offset_before_the_body_is_none(offset: int) -> None:
    with pytest.raises(IndexError):
        Arrivals.of(exchange_of([b"ab"])).at(offset)


def test_the_instants_of_the_exchange_come_along() -> None:
    arrivals = Arrivals.of(exchange_of([b"a"]))
    assert (arrivals.sent_ns, arrivals.headers_ns) == (900, 950)


@pytest.mark.parametrize("reads", [0, 1])
def test_one_read_without_a_kernel_stamp_is_enough_to_say_so(reads: int) -> None:
    exchange = exchange_of([b"a", b"b"])
    exchange.user_stamped_reads = reads
    assert Arrivals.of(exchange).kernel is (reads == 0)


def test_the_types_and_that_the_arrays_are_copies() -> None:
    exchange = exchange_of([b"ab", b"c"])
    arrivals = Arrivals.of(exchange)
    exchange.stamps[0] = 5
    assert (arrivals.ends.tolist(), arrivals.stamps_ns.tolist()) == ([2, 3], [1000, 1010])
    assert {arrivals.ends.dtype.name, arrivals.stamps_ns.dtype.name} == {"int64"}
