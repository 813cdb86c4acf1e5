"""What the dialects share: the shape of an event, and the request body."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import msgspec

Prompt = str | list[int]
TokenCount = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]  # what a column holds; anything else is nonsense


class PromptDetails(msgspec.Struct, gc=False):
    """``usage.prompt_tokens_details``."""

    cached_tokens: TokenCount | None = None


class Usage(msgspec.Struct, gc=False):
    """``usage``, wherever it appears."""

    prompt_tokens: TokenCount | None = None
    completion_tokens: TokenCount | None = None
    prompt_tokens_details: PromptDetails | None = None


class Delta(msgspec.Struct, gc=False):
    """``choices[].delta`` of a stream, or ``choices[].message`` of a whole answer."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None
    refusal: str | None = None
    role: str | None = None


class Choice(msgspec.Struct, gc=False):
    """One of ``choices``, of either dialect."""

    delta: Delta | None = None
    text: str | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class Event(msgspec.Struct, gc=False):
    """The payload of one event; fields that nothing here needs are skipped unread."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None


class PlainDelta(msgspec.Struct, gc=False):
    """A `Delta` that is text and nothing else that counts."""

    content: Annotated[str, msgspec.Meta(min_length=1)]
    refusal: None = None


class PlainChoice(msgspec.Struct, gc=False):
    """The one `Choice` of a `PlainEvent`."""

    delta: PlainDelta
    finish_reason: None = None
    token_ids: None = None


class PlainUsage(msgspec.Struct, gc=False):
    """A running `Usage` of both counts and nothing else."""

    prompt_tokens: TokenCount
    completion_tokens: TokenCount
    prompt_tokens_details: None = None


class PlainEvent(msgspec.Struct, gc=False):
    """Nearly every event of a chat: some text. An `Event` that says more than this does not decode as one."""

    choices: tuple[PlainChoice]
    usage: PlainUsage | None = None
    error: None = None


class Dialect(Protocol):
    """How one API is spoken.

    Attributes:
        name: as `endpoint.api` in a scenario.
        path: below the server's base URL.
    """

    name: str
    path: str

    def body(self, model: str, prompt: Prompt, max_tokens: int, stream: bool, extras: dict[str, Any]) -> bytes:
        """The JSON body of a request; `extras` are added to it as they are."""
        ...
