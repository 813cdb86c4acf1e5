"""A request as the simulated engine sees it."""

from __future__ import annotations

from enum import Enum
from typing import Protocol
from zlib import crc32

from servebench.engine.sim.tokens import answer_token


class State(Enum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Finish(Enum):
    """Why a request ended, in vLLM's words."""

    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"


class Listener(Protocol):
    """Who is told of a request's tokens."""

    def token(self, token: int, finish: Finish | None) -> None:
        """Take one output token; `finish` is set with the last."""
        ...


class Request:
    """A prompt, what has been computed of it, and its answer so far.

    Attributes:
        tokens: prompt and output token ids.
        prompt_tokens: how many of them are the prompt.
        max_tokens: output tokens to make.
        ending: the finish reason of the last of them.
        computed: leading tokens whose KV entries exist.
        blocks: KV blocks held, in token order.
        hashes: chained hashes of the full blocks of `tokens`.
        published: leading blocks offered to the prefix cache.
        cached_tokens: prompt tokens found in the prefix cache at first admission; None before.
        preemptions: how often the request lost its blocks.
        arrived, scheduled, first_token, last_token: instants in seconds on the driver's clock; None if not reached.
    """

    __slots__ = (
        "arrived", "blocks", "cached_tokens", "computed", "ending", "finish", "first_token", "hashes", "last_token",
        "listener", "max_tokens", "preemptions", "prompt_tokens", "published", "scheduled", "seed", "state", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        prompt: list[int],
        max_tokens: int,
        listener: Listener | None = None,
        ending: Finish = Finish.LENGTH,
        model: str = "",
    ) -> None:
        self.tokens = list(prompt)
        self.prompt_tokens = len(prompt)
        self.max_tokens = max_tokens
        self.listener = listener
        self.ending = ending
        self.seed = hash((crc32(model.encode()), *prompt))  # another model answers otherwise
        self.state = State.WAITING
        self.finish: Finish | None = None
        self.computed = 0
        self.blocks: list[int] = []
        self.hashes: list[int] = []
        self.published = 0
        self.cached_tokens: int | None = None
        self.preemptions = 0
        self.arrived = 0.0
        self.scheduled: float | None = None
        self.first_token: float | None = None
        self.last_token: float | None = None

    @property
    def output_tokens(self) -> int:
        """Tokens made so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def decoding(self) -> bool:
        """Whether only the newest output token is still to be computed."""
        return self.computed >= self.prompt_tokens and self.computed == len(self.tokens) - 1

    def extend(self) -> int:
        """Append the next output token and return it."""
        token = answer_token(self.seed, self.output_tokens)
        self.tokens.append(token)
        return token

    def hash_blocks(self, size: int) -> None:
        """Bring `hashes` up to the full blocks of `size` tokens; each hash covers all tokens before it."""
        for start in range(len(self.hashes) * size, len(self.tokens) - size + 1, size):
            parent = self.hashes[-1] if self.hashes else 0
            self.hashes.append(hash((parent, *self.tokens[start : start + size])))
