"""How many tokens each received event carried: a chunk is not a token (DESIGN §3.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WEAK, FINISH, STRONG = 1, 2, 3

CHUNK_USAGE = "chunk_usage"
TOKEN_IDS = "token_ids"
EVENTS = "events"
USAGE_SHARE = "usage_share"
TOKENIZER = "tokenizer"
ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Chunks:
    """The token-bearing chunks of a response; events of one read are one chunk. All arrays have one entry a chunk.

    Attributes:
        arrival_ns: int64, CLOCK_REALTIME.
        tokens: int32, ≥ 1.
        channel: int8, 0 content, 1 reasoning, 2 tool call; that of the chunk's first token.
        size: int32, payload bytes of the chunk's events.
        source: where `tokens` comes from; None without tokens.
        coalesced: reads that held more than one token-bearing event.
        first_visible_ns: arrival of the first answer content; None if there was none.
    """

    arrival_ns: NDArray[np.int64]
    tokens: NDArray[np.int32]
    channel: NDArray[np.int8]
    size: NDArray[np.int32]
    source: str | None
    coalesced: int
    first_visible_ns: int | None

    @property
    def total(self) -> int:
        """All tokens."""
        return int(self.tokens.sum())


class EventTokens:
    """What the events say of tokens, one entry an event that may carry some.

    An event is *strong* when it has text (or reasoning, or a tool call), *weak* when it is an empty delta, *finish*
    when it is empty and gives the finish reason. Empty ones count only if the server's figures say they were tokens.
    """

    __slots__ = ("arrival", "channel", "ids", "length", "size", "strength", "totals")

    def __init__(self) -> None:
        self.arrival: list[int] = []
        self.strength: list[int] = []
        self.channel: list[int] = []
        self.length: list[int] = []
        self.size: list[int] = []
        self.ids: dict[int, int] = {}
        self.totals: dict[int, int] = {}

    def add(
        self,
        arrival: int,
        strength: int,
        channel: int,
        length: int,
        size: int,
        ids: int | None = None,
        total: int | None = None,
    ) -> None:
        """Add one event.

        Args:
            arrival: ns, CLOCK_REALTIME.
            strength: how surely it carries a token: WEAK, FINISH or STRONG; 0 for not by itself.
            channel: of its text.
            length: characters of its text.
            size: bytes of its payload.
            ids: number of token ids that it names; None where it names none.
            total: running `completion_tokens`; None where it has none.
        """
        if ids is not None:
            self.ids[len(self.arrival)] = ids
        if total is not None:
            self.totals[len(self.arrival)] = total
        self.arrival.append(arrival)
        self.strength.append(strength)
        self.channel.append(channel)
        self.length.append(length)
        self.size.append(size)

    def add_plain(
        self, arrivals: Sequence[int], lengths: Sequence[int], sizes: Iterable[int], totals: Sequence[int] = ()
    ) -> None:
        """Add events that have content; arguments as in `add`, one entry an event; no `totals` where they name none."""
        self.totals.update(enumerate(totals, len(self.arrival)))
        self.arrival += arrivals
        self.strength += [STRONG] * len(arrivals)
        self.channel += [0] * len(arrivals)
        self.length += lengths
        self.size += sizes


def count_tokens(events: EventTokens, usage: int | None, tokenized: int | None = None) -> Chunks:
    """Settle the tokens of every event by the best source there is, and join the events of each read.

    Args:
        events: in order of arrival.
        usage: the server's final `completion_tokens`, or None.
        tokenized: a local tokenizer's count of the whole text, or None.
    """
    size = len(events.arrival)
    strength = np.array(events.strength, np.int8)
    tokens, source = _settle(events, strength, usage, tokenized)
    keep = np.flatnonzero(tokens > 0) if size else np.empty(0, np.int64)
    if not keep.size:
        return _empty()
    arrival = np.array(events.arrival, np.int64)[keep]
    channel = np.array(events.channel, np.int8)[keep]
    visible = np.flatnonzero((channel == 0) & (strength[keep] == STRONG))
    starts = np.flatnonzero(np.diff(arrival, prepend=arrival[0] - 1))
    runs = np.diff(starts, append=arrival.size)
    return Chunks(
        arrival_ns=arrival[starts],
        tokens=np.add.reduceat(tokens[keep], starts).astype(np.int32),
        channel=channel[starts],
        size=np.add.reduceat(np.array(events.size, np.int64)[keep], starts).astype(np.int32),
        source=source,
        coalesced=int((runs > 1).sum()),
        first_visible_ns=int(arrival[visible[0]]) if visible.size else None,
    )


def _settle(
    events: EventTokens, strength: NDArray[np.int8], usage: int | None, tokenized: int | None
) -> tuple[NDArray[np.int64], str | None]:
    """Tokens of each event, and the source they come from."""
    strong = np.flatnonzero(strength == STRONG)
    if _has_running_usage(events, usage) and _names_all(strong, events.totals):
        tokens = _made_up(_from_totals(events, strength.size), strong, usage)
        if tokens is not None:
            return tokens, CHUNK_USAGE
    if events.ids and _names_all(strong, events.ids):
        tokens = np.zeros(strength.size, np.int64)
        tokens[list(events.ids)] = list(events.ids.values())
        tokens = _made_up(tokens, strong, usage)
        if tokens is not None:
            return tokens, TOKEN_IDS
    if usage is not None:
        for kinds in ((STRONG,), (STRONG, WEAK), (STRONG, WEAK, FINISH)):
            chosen = np.logical_or.reduce([strength == kind for kind in kinds])
            if int(chosen.sum()) == usage:
                return chosen.astype(np.int64), EVENTS
        return _share(usage, _weights(events, strength)), USAGE_SHARE
    if tokenized is not None and strength.size:
        return _share(tokenized, _weights(events, strength)), TOKENIZER
    return (strength == STRONG).astype(np.int64), ASSUMED if strong.size else None


def _has_running_usage(events: EventTokens, usage: int | None) -> bool:
    """True when usage came with the chunks and grew on the way, rather than once at the end."""
    if not events.totals or usage is None:
        return False
    return len(events.totals) > 1 or next(iter(events.totals.values())) < usage


def _names_all(strong: NDArray[np.intp], figures: dict[int, int]) -> bool:
    """True when every event with text has a figure; a figure on some leaves open when the others' tokens came."""
    return all(place in figures for place in strong.tolist())


def _from_totals(events: EventTokens, size: int) -> NDArray[np.int64]:
    """Differences of the running totals."""
    tokens = np.zeros(size, np.int64)
    level = np.maximum.accumulate(np.array(list(events.totals.values()), np.int64))
    tokens[list(events.totals)] = np.diff(level, prepend=0)
    return tokens


def _made_up(tokens: NDArray[np.int64], strong: NDArray[np.intp], usage: int | None) -> NDArray[np.int64] | None:
    """`tokens` so that they make up `usage`; None when they contradict it, or call the first text no token.

    A rest no larger than what one event brought, such as an end-of-sequence token without an event, came with the last.
    More than that is not what the events were about: each choice's own total, say, where usage is that of all.
    """
    if strong.size and not tokens[strong[0]]:
        return None
    rest = 0 if usage is None else usage - int(tokens.sum())
    if rest < 0 or rest > tokens.max(initial=0):
        return None
    if rest:
        tokens[np.flatnonzero(tokens)[-1]] += rest
    return tokens


def _weights(events: EventTokens, strength: NDArray[np.int8]) -> NDArray[np.int64]:
    """Text lengths of the events that can have carried tokens; 0 for the others."""
    strong = strength == STRONG
    carriers = strong if strong.any() else strength > 0
    return np.where(carriers, np.maximum(np.array(events.length, np.int64), 1), 0)


def _share(total: int, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """`total` split into whole numbers in proportion to `weights`, at least one for each weight while they last.

    An event with text has a token, however short its text: else the first token would seem later than it was.
    """
    carriers = np.flatnonzero(weights)
    shares = np.zeros(weights.size, np.int64)
    if total < carriers.size:
        shares[carriers[np.arange(total) * (carriers.size - 1) // max(total - 1, 1)]] = 1
    elif carriers.size:
        least_one = np.maximum(_rounded(total, weights[carriers]), 1)
        shares[carriers] = least_one - _rounded(int(least_one.sum()) - total, least_one - 1)
    return shares


def _rounded(total: int, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """`total` in proportion to `weights` by cumulative rounding; each part is its exact one or less than 1 from it."""
    edges = np.cumsum(weights)
    shares: NDArray[np.int64] = np.diff((edges * total + edges[-1] // 2) // max(int(edges[-1]), 1), prepend=0)
    return shares


def _empty() -> Chunks:
    return Chunks(
        np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int8), np.empty(0, np.int32), None, 0, None
    )
