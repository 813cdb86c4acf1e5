"""What the ground-truth server said, beside what the client stamped, from the raw bytes of a run."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from servebench.record.raw import read_raw
from servebench.record.rundir import RunDir

T_NS = re.compile(rb'"t_ns":\s*(\d+)')


@dataclass(frozen=True, slots=True)
class Truth:
    """The server's instants against the client's.

    Attributes:
        lateness_ns: client stamp less the server's t_ns, of every token.
        ttft_ns: of every request, the t_ns of its first token less the instant at which the client had sent it.
        expected: tokens that should have come.
    """

    lateness_ns: NDArray[np.int64]
    ttft_ns: NDArray[np.int64]
    expected: int

    def late_us(self, percentile: float) -> float:
        """A percentile (nearest rank) of the stamp error in microseconds."""
        return float(np.percentile(self.lateness_ns, percentile, method="inverted_cdf")) / 1e3

    @property
    def ttft_ms(self) -> float:
        """The server's own mean TTFT in ms."""
        return float(self.ttft_ns.mean()) / 1e6

    @property
    def missing(self) -> int:
        """Tokens without a stamp."""
        return self.expected - int(self.lateness_ns.size)


def read_truth(path: Path, expected: int) -> Truth:
    """Read the truth of a run with --keep-raw in `path`, which should have `expected` tokens."""
    requests = RunDir.open(path).requests()
    sent = dict(zip(requests["index"].to_pylist(), requests["sent_ns"].to_pylist(), strict=True))
    lateness: list[int] = []
    ttft: list[int] = []
    for request, parts, stamps in responses(path / "raw"):
        tokens = list(stamped_tokens(parts, stamps))
        lateness += [stamp - t_ns for t_ns, stamp in tokens]
        ttft += [t_ns - sent[request] for t_ns, _ in tokens[:1]]
    return Truth(np.array(lateness, np.int64), np.array(ttft, np.int64), expected)


def first_sent_ns(path: Path) -> int:
    """When the first request of the run in `path` was sent, CLOCK_REALTIME ns."""
    import pyarrow.compute as pc

    return int(pc.min(RunDir.open(path).requests()["sent_ns"]).as_py())


def responses(directory: Path) -> Iterator[tuple[int, list[bytes], list[int]]]:
    """Yield (request, parts, stamps) of each response that has a body."""
    table = read_raw(directory)
    request = table["request"].to_numpy()
    order = np.argsort(request, kind="stable")  # keeps the reads of a request in the order in which they came
    if order.size:
        for rows in np.split(order, np.flatnonzero(np.diff(request[order])) + 1):
            mine = table.take(rows)
            yield int(request[rows[0]]), mine["data"].to_pylist(), mine["arrival_ns"].to_pylist()


def stamped_tokens(parts: Sequence[bytes], stamps: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (t_ns, stamp) of each event in a response: the stamp is that of the read which brought its last byte.

    Args:
        parts: what each read brought, in order.
        stamps: when each arrived, CLOCK_REALTIME ns.
    """
    body = b"".join(parts)
    edges = list(accumulate(map(len, parts)))
    for match in T_NS.finditer(body):
        end = body.find(b"\n\n", match.end())
        if end >= 0:
            yield int(match[1]), stamps[bisect_left(edges, end + 2)]
