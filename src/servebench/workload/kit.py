"""The prompt kit: what it takes to write a prompt of exactly so many tokens, without a tokenizer at hand.

A kit is made once, before the load (see `prompts`), and travels to the workers as JSON. Writing a prompt is then a
pure function of the kit and a few integers. The words come from SHAKE-128, an extendable-output function: the same
text on every machine and Python version, and a longer prompt of one seed continues a shorter one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from hashlib import shake_128
from typing import Any, Literal

Method = Literal["server_tokenizer", "local_tokenizer", "token_ids", "calibrated_words"]

POOL_LIMIT = 256  # one random byte picks one word


@dataclass(frozen=True)
class PromptKit:
    """How to write prompts for one server, model and API.

    Attributes:
        method: where the counts come from.
        exact: whether a prompt has exactly the tokens asked for, by the server's count (from `minimum` upwards).
        overhead: tokens that every prompt has beyond its words: template, BOS; None if it could not be learnt.
        words: the pool, up to `POOL_LIMIT`, each one token when it follows a space; empty with `token_ids`.
        head: the first word of every prompt, which has no space before it. Its cost beyond one token is in `overhead`.
        token_ids: the pool of ids where prompts are ids and not text, else empty.
        tokens_per_word: 1 unless the words could only be calibrated.
        leading_tokens: tokens at the front that all prompts have in common (the template's opening and the head), so
            that whole blocks of them hit a prefix cache although the salt is unique; None if not known.
        residual: largest error of the calibration in tokens; None where nothing was fitted.
        note: one line for the report on what is not exact, or why; empty if there is nothing to say.
    """

    method: Method
    exact: bool
    overhead: int | None
    words: tuple[str, ...] = ()
    head: str = ""
    token_ids: tuple[int, ...] = ()
    tokens_per_word: float = 1.0
    leading_tokens: int | None = None
    residual: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if not 1 <= len(self.words) + len(self.token_ids) <= POOL_LIMIT or (self.words and self.token_ids):
            raise ValueError(f"a prompt kit needs 1 to {POOL_LIMIT} words or token ids")

    @property
    def minimum(self) -> int:
        """The fewest tokens that a prompt can have; `prompt` answers a smaller wish with this many."""
        return (self.overhead or 0) + 1

    def prompt(
        self, tokens: int, seed: int, salt: int, prefix_group: int = -1, prefix_tokens: int = 0
    ) -> str | list[int]:
        """Write a prompt of `tokens` tokens by the server's count, its overhead included.

        Args:
            tokens: the length; below `minimum` the shortest possible prompt is written.
            seed: the request's own; decides every word after the shared prefix.
            salt: the run's own; another salt changes every word, so that no run meets the cache of another.
            prefix_group: the group that shares its opening, or −1.
            prefix_tokens: how many of the content's first tokens are the group's; cut to the content.

        Returns:
            The text, or with `token_ids` the ids.
        """
        wanted = self._units(tokens)
        shared = min(max(prefix_tokens, 0), wanted) if prefix_group >= 0 else 0
        picks = _stream(f"servebench {salt} request {seed}", wanted - shared)
        if shared:
            picks = _stream(f"servebench {salt} group {prefix_group}", shared) + picks
        table = self._table
        if self.token_ids:
            return [table[pick] for pick in picks]
        return self.head + "".join([table[pick] for pick in picks[1:]])

    def _units(self, tokens: int) -> int:
        """How many words (or ids) make a prompt of `tokens` tokens, at least one."""
        content = tokens - (self.overhead or 0)
        return max(1, content if self.tokens_per_word == 1.0 else round(content / self.tokens_per_word))

    @cached_property
    def _table(self) -> list[Any]:
        """The pool repeated to 256 entries, a word with the space before it."""
        pool: list[Any] = [f" {word}" for word in self.words] or list(self.token_ids)
        return [pool[byte % len(pool)] for byte in range(256)]

    def summary(self) -> dict[str, Any]:
        """What a run's manifest says about its prompts: everything but the pool itself."""
        return {k: v for k, v in self.to_dict().items() if k not in ("words", "token_ids", "head")}

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able data, from which `from_dict` makes the same kit."""
        return asdict(self) | {"words": list(self.words), "token_ids": list(self.token_ids)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PromptKit:
        """Make a kit from what `to_dict` returned; raises ValueError on unknown or missing keys."""
        known = {field.name for field in fields(cls)}
        if unknown := set(data) - known:
            raise ValueError(f"unknown keys of a prompt kit: {', '.join(sorted(unknown))}")
        try:
            return cls(**{**data, "words": tuple(data["words"]), "token_ids": tuple(data["token_ids"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a prompt kit: {error}") from None


def _stream(key: str, length: int) -> bytes:
    """`length` bytes that only `key` decides; a longer stream begins with the shorter one."""
    return shake_128(key.encode()).digest(length)
