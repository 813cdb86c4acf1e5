"""The body of a response as it arrived: its bytes, and when the kernel had each stretch of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servebench.wire.exchange import Exchange


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What `KernelStampTransport` leaves in ``response.extensions["arrivals"]`` once the body has been read.

    Attributes:
        body: the bytes, transfer coding removed.
        ends: int64, for each piece the offset in `body` just past it.
        stamps_ns: int64, CLOCK_REALTIME, the arrival of the read that brought the piece.
        sent_ns: when the last byte of the request had been handed to the kernel.
        headers_ns: arrival of the read that completed the head.
        kernel: whether every stamp is the kernel's.
    """

    body: bytes
    ends: NDArray[np.int64]
    stamps_ns: NDArray[np.int64]
    sent_ns: int | None
    headers_ns: int | None
    kernel: bool

    @classmethod
    def of(cls, exchange: Exchange) -> Arrivals:
        """Take what `exchange` holds, as it was transferred (a content coding such as gzip is still on it)."""
        parts, stamps = exchange.parts, exchange.stamps
        return cls(
            body=b"".join(parts),
            ends=np.cumsum([len(part) for part in parts], dtype=np.int64),
            stamps_ns=np.array(stamps, np.int64),
            sent_ns=exchange.sent_ns,
            headers_ns=exchange.headers_ns,
            kernel=exchange.user_stamped_reads == 0,
        )

    def at(self, offset: int) -> int:
        """The arrival (ns) of the body byte at `offset`; raises IndexError outside the body."""
        if offset < 0:
            raise IndexError(offset)
        return int(self.stamps_ns[self.ends.searchsorted(offset, "right")])
