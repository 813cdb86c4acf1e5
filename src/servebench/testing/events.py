"""Server-sent events of the OpenAI streaming API, right and odd ones."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

Api = Literal["chat", "completions"]
Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


def sse(data: Json | str, *, eol: str = "\n", space: bool = True, event: str | None = None) -> bytes:
    """Encode one event; `eol` ends its lines, `space` follows the colon, `event` adds an `event:` line."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    gap = " " if space else ""
    lines = [f"event:{gap}{event}"] if event else []
    lines += [f"data:{gap}{line}" for line in text.split("\n")]
    return (eol.join(lines) + eol + eol).encode()


@dataclass(frozen=True, slots=True)
class Events:
    """Builds the JSON objects of one API's stream. Every method returns a dict that `sse` encodes.

    Attributes:
        api: `chat` or `completions`.
        model: the name that the objects carry.
    """

    api: Api
    model: str = "scripted"

    @property
    def path(self) -> str:
        """Where this API is served."""
        return "/v1/chat/completions" if self.api == "chat" else "/v1/completions"

    def chunk(self, choices: list[Json] | None, **extra: Any) -> Json:
        """A stream object with these choices, as they are."""
        kind = "chat.completion.chunk" if self.api == "chat" else "text_completion"
        return {"id": "x-1", "object": kind, "created": 1, "model": self.model, "choices": choices, **extra}

    def delta(self, delta: Json | None, *, finish: str | None = None, index: int = 0, **extra: Any) -> Json:
        """A chat chunk with one choice that has this delta; completions have no deltas."""
        return self.chunk([{"index": index, "delta": delta, "finish_reason": finish}], **extra)

    def text(self, text: str | None, *, finish: str | None = None, index: int = 0, **extra: Any) -> Json:
        """Answer text in the API's own place. `extra` goes beside `choices`."""
        if self.api == "chat":
            return self.delta({"content": text}, finish=finish, index=index, **extra)
        return self.chunk([{"index": index, "text": text, "finish_reason": finish}], **extra)

    def token_ids(self, text: str, ids: list[int], *, finish: str | None = None) -> Json:
        """Answer text together with the ids of its tokens, as with vLLM's `return_token_ids`."""
        event = self.text(text, finish=finish)
        event["choices"][0]["token_ids"] = ids
        return event

    def role(self) -> Json:
        """The opening of an answer: a chat's role with empty content; an empty text in completions."""
        return self.delta({"role": "assistant", "content": ""}) if self.api == "chat" else self.text("")

    def reasoning(self, text: str, *, key: str = "reasoning_content") -> Json:
        """Reasoning text (chat only); servers name the field `reasoning_content` or `reasoning`."""
        return self.delta({key: text})

    def tool_call(self, arguments: str, *, name: str | None = None) -> Json:
        """A piece of a tool call (chat only); the first piece carries the tool's `name`."""
        call: Json = {"index": 0, "function": {"arguments": arguments}}
        if name is not None:
            call |= {"id": "call-1", "type": "function", "function": {"name": name, "arguments": arguments}}
        return self.delta({"tool_calls": [call]})

    def finish(self, reason: str = "stop") -> Json:
        """The end of the answer, without text."""
        return self.delta({}, finish=reason) if self.api == "chat" else self.text("", finish=reason)

    def usage(self, prompt: int, completion: int, cached: int | None = None) -> Json:
        """The chunk that carries nothing but the counts."""
        return self.chunk([], usage=usage(prompt, completion, cached))

    def whole(self, text: str, counts: Json | None = None, *, finish: str = "stop") -> Json:
        """The object that answers a request with `stream: false`."""
        choice: Json = {"index": 0, "finish_reason": finish}
        choice |= {"message": {"role": "assistant", "content": text}} if self.api == "chat" else {"text": text}
        kind = "chat.completion" if self.api == "chat" else "text_completion"
        return self.chunk([choice], usage=counts) | {"object": kind}


def usage(prompt: int, completion: int, cached: int | None = None) -> Json:
    """The counts as OpenAI spells them; `cached` prompt tokens only when given."""
    counts: Json = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return counts if cached is None else counts | {"prompt_tokens_details": {"cached_tokens": cached}}


def error(message: str, kind: str = "server_error", code: int | str | None = 500) -> Json:
    """The error object that servers put into a body or, in mid-answer, into a stream."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
