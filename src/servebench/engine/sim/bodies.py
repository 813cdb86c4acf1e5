"""Request bodies of the OpenAI and vLLM routes: what is understood, and what is refused with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from servebench.engine.sim import tokens
from servebench.engine.sim.request import Finish

NATURAL_LENGTH = 128  # tokens of a chat answer that asks for no length: it then ends by itself
COMPLETION_LENGTH = 16  # the OpenAI default of /v1/completions


class RefusedError(Exception):
    """A request answered with an OpenAI-shaped error.

    Attributes:
        status: HTTP status; `kind` the error's type in vLLM's words; `param` the body key at fault, if one is.
    """

    def __init__(
        self, message: str, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """Return the JSON error object."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})


class ContentPart(msgspec.Struct):
    """A part of a message's content."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    """A turn of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None

    def text(self) -> str:
        """Return the content as plain text.

        Raises:
            RefusedError: a part is not text.
        """
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        for part in self.content:
            if part.text is None:
                raise RefusedError(f"content of type {part.type!r} is not simulated; only text is", param="messages")
        return "\n".join(part.text or "" for part in self.content)


class StreamOptions(msgspec.Struct):
    """The `stream_options` object."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Prompted(msgspec.Struct, kw_only=True):
    model: str | None = None
    messages: list[Message] | None = None
    prompt: str | list[int | str | list[int]] | None = None

    def prompt_ids(self, add_generation_prompt: bool = True) -> list[int]:
        """Return the prompt's token ids.

        Raises:
            RefusedError: there is no prompt, more than one, or an id outside the vocabulary.
        """
        if self.messages is not None:
            turns = [(message.role, message.text()) for message in self.messages]
            return tokens.encode(tokens.render_chat(turns, add_generation_prompt))
        if isinstance(self.prompt, str):
            return tokens.encode(self.prompt)
        return self._from_list(self.prompt or [])

    def _from_list(self, items: list[int | str | list[int]]) -> list[int]:
        ids = [item for item in items if isinstance(item, int)]
        if items and len(ids) == len(items):
            return _checked(ids)
        if len(items) != 1:
            raise RefusedError(f"one prompt a request is simulated, got {len(items)}", param="prompt")
        only = items[0]
        assert not isinstance(only, int)
        return tokens.encode(only) if isinstance(only, str) else _checked(only)


class Generation(_Prompted, kw_only=True):
    """The body of /v1/chat/completions and /v1/completions. Sampling settings change nothing here and are accepted."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1
    best_of: int | None = None
    echo: bool | None = False
    logprobs: bool | int | None = None
    prompt_logprobs: int | None = None
    tools: list[msgspec.Raw] | None = None
    return_token_ids: bool | None = False


class Tokenize(_Prompted, kw_only=True):
    """The body of /tokenize: a prompt or messages. The simulated tokenizer adds no special tokens to a prompt."""

    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False


class Detokenize(msgspec.Struct):
    """The body of /detokenize."""

    tokens: list[int]
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A generation request, checked.

    Attributes:
        prompt: token ids.
        max_tokens: output tokens to make, `ending` the finish reason of the last.
        usage: send a usage chunk at the end of a stream; `running_usage`: and in every chunk.
    """

    chat: bool
    prompt: list[int]
    max_tokens: int
    ending: Finish
    stream: bool
    usage: bool
    running_usage: bool
    token_ids: bool


Body = TypeVar("Body", bound=msgspec.Struct)


def read(body: bytes, shape: type[Body]) -> Body:
    """Decode a JSON body.

    Raises:
        RefusedError: it is not JSON or not of that shape.
    """
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusedError(str(error)) from None


def wanted(body: Generation, chat: bool) -> Wanted:
    """Check a generation body.

    Raises:
        RefusedError: with status 400 and the key at fault.
    """
    _refuse_unsimulated(body)
    if (body.messages if chat else body.prompt) is None:
        key = "messages" if chat else "prompt"
        raise RefusedError(f"the body has no {key}", param=key)
    if body.stream_options is not None and not body.stream:
        raise RefusedError("Stream options can only be defined when `stream=True`.", param="stream_options")
    if not chat:
        body.messages = None
    prompt = body.prompt_ids()
    if not prompt:
        raise RefusedError("The prompt cannot be empty", param="prompt")
    length, ending = _length(body, chat)
    options = body.stream_options or StreamOptions()
    running = bool(options.include_usage and options.continuous_usage_stats)
    return Wanted(
        chat,
        prompt,
        length,
        ending,
        bool(body.stream),
        bool(options.include_usage),
        running,
        bool(body.return_token_ids),
    )


def _length(body: Generation, chat: bool) -> tuple[int, Finish]:
    asked = body.max_completion_tokens if chat and body.max_completion_tokens is not None else body.max_tokens
    if asked is not None and asked < 1:
        raise RefusedError(f"max_tokens must be at least 1, got {asked}.", param="max_tokens")
    if asked is not None and (body.min_tokens or 0) > asked:
        raise RefusedError(f"min_tokens must be at most max_tokens={asked}, got {body.min_tokens}.", param="min_tokens")
    if asked is None and chat:
        return max(NATURAL_LENGTH, body.min_tokens or 0), Finish.STOP
    return asked or max(COMPLETION_LENGTH, body.min_tokens or 0), Finish.LENGTH


def _refuse_unsimulated(body: Generation) -> None:
    # What would change the shape of the answer must not be ignored silently.
    for key, asked in (
        ("n", (body.n or 1) > 1),
        ("best_of", (body.best_of or 1) > 1),
        ("echo", body.echo),
        ("logprobs", body.logprobs is not None and body.logprobs is not False),
        ("prompt_logprobs", body.prompt_logprobs is not None),
        ("tools", bool(body.tools)),
    ):
        if asked:
            raise RefusedError(f"{key} is not supported by the simulated engine", param=key)


def _checked(ids: list[int]) -> list[int]:
    try:
        tokens.check_ids(ids)
    except ValueError as error:
        raise RefusedError(str(error), param="prompt") from None
    return ids
