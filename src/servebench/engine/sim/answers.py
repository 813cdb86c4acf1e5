"""Answers as vLLM words them: a stream of chunks whose parts are prepared ahead, or one object at the end."""

from __future__ import annotations

import itertools
import time
from typing import Any

import msgspec

from servebench.engine.sim.bodies import Wanted
from servebench.engine.sim.http import HttpConnection, chunk
from servebench.engine.sim.request import Finish, Request
from servebench.engine.sim.tokens import WORD_LENGTH, WORDS, decode

_DONE = b"data: [DONE]\n\n"
_SLOT = "\x00"  # stands for the token's text in a chunk that is encoded once
_SLOT_JSON = b"\\u0000"
_MADE = 1 << 52  # and this for the running count of tokens
_WHOLE = {True: "chat.completion", False: "text_completion"}
_numbers = itertools.count(1)

_SPACED = tuple(b" " + word.encode("ascii") for word in WORDS)

Json = dict[str, Any]


def usage(request: Request, made: int) -> Json:
    """Return the usage object when `made` output tokens have been sent."""
    return {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens + made,
        "completion_tokens": made,
    }


def final_usage(request: Request) -> Json:
    """Return the usage object of a complete answer, with the prompt tokens that the prefix cache held."""
    details = {"cached_tokens": request.cached_tokens or 0}
    return {**usage(request, request.output_tokens), "prompt_tokens_details": details}


class _Wording:
    """What the two routes call their objects."""

    def __init__(self, wanted: Wanted, model: str) -> None:
        self.chat = wanted.chat
        prefix = "chatcmpl" if wanted.chat else "cmpl"
        self._common: Json = {
            "id": f"{prefix}-{next(_numbers):032x}",
            "object": "chat.completion.chunk" if wanted.chat and wanted.stream else _WHOLE[wanted.chat],
            "created": int(time.time()),
            "model": model,
        }

    def object(self, choices: list[Json], **more: object) -> Json:
        return {**self._common, "choices": choices, **more}

    def role(self) -> Json:
        delta = {"role": "assistant", "content": ""}
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, text: str, finish: Finish | None, token_ids: list[int] | None) -> Json:
        said: Json = {"delta": {"content": text}} if self.chat else {"text": text}
        reason = finish.value if finish else None
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        if finish or not self.chat:
            choice["stop_reason"] = None
        return {**choice, "token_ids": token_ids}

    def whole(self, text: str, finish: Finish, token_ids: list[int] | None) -> Json:
        said: Json = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        ending: Json = {"logprobs": None, "finish_reason": finish.value, "stop_reason": None}
        return {"index": 0, **said, **ending, "token_ids": token_ids}


class WholeAnswer:
    """Collects the tokens and answers with one object."""

    def __init__(self, connection: HttpConnection, wanted: Wanted, model: str) -> None:
        self._connection = connection
        self._wanted = wanted
        self._wording = _Wording(wanted, model)
        self.request = Request(wanted.prompt, wanted.max_tokens, self, wanted.ending, model)

    def accepted(self) -> None:
        """Send nothing yet: a whole answer has its head at the end."""

    def token(self, token: int, finish: Finish | None) -> None:
        """See `Listener.token`."""
        if finish is None:
            return
        request = self.request
        made = request.tokens[request.prompt_tokens :]
        choice = self._wording.whole(decode(made), finish, made if self._wanted.token_ids else None)
        self._connection.respond(200, msgspec.json.encode(self._wording.object([choice], usage=final_usage(request))))


class StreamAnswer:
    """Sends server-sent events: in one write, what one step has made for this request."""

    def __init__(self, connection: HttpConnection, wanted: Wanted, model: str) -> None:
        self._connection = connection
        self._wanted = wanted
        self._wording = _Wording(wanted, model)
        self._chunked = True
        self._before = self._after = b""
        self.request = Request(wanted.prompt, wanted.max_tokens, self, wanted.ending, model)

    def accepted(self) -> None:
        """Send the head, as vLLM does long before the first token, and prepare the chunks that follow it."""
        self._chunked = self._connection.start_stream()
        if self._wanted.token_ids:
            return
        before, _, after = self._event([self._wording.delta(_SLOT, None, None)], _MADE).rpartition(_SLOT_JSON)
        if self._wanted.running_usage:
            total = self.request.prompt_tokens + _MADE
            self._before, self._after = before, after.replace(b"%d" % total, b"%d").replace(b"%d" % _MADE, b"%d")
        else:
            length = len(before) + 1 + WORD_LENGTH + len(after)
            self._before = b"%x\r\n%b" % (length, before) if self._chunked else before
            self._after = after + b"\r\n" if self._chunked else after

    def token(self, token: int, finish: Finish | None) -> None:
        """See `Listener.token`."""
        if finish is not None:
            self._connection.end_stream(self._framed(self._events(token, finish) + self._closing()) + self._end())
        elif self._wanted.token_ids or self.request.output_tokens == 1:
            self._connection.write(self._framed(self._events(token, None)))
        elif self._wanted.running_usage:
            self._connection.write(self._counted(token))
        else:
            self._connection.write(self._before + _SPACED[token] + self._after)

    def _counted(self, token: int) -> bytes:
        made = self.request.output_tokens
        event = self._before + _SPACED[token] + self._after % (self.request.prompt_tokens + made, made)
        return chunk(event) if self._chunked else event

    def _events(self, token: int, finish: Finish | None) -> list[bytes]:
        made = self.request.output_tokens
        text = WORDS[token] if made == 1 else " " + WORDS[token]
        choice = self._wording.delta(text, finish, [token] if self._wanted.token_ids else None)
        opening = [self._event([self._wording.role()], 0)] if made == 1 and self._wanted.chat else []
        return [*opening, self._event([choice], made)]

    def _closing(self) -> list[bytes]:
        if not self._wanted.usage:
            return [_DONE]
        return [_data(self._wording.object([], usage=final_usage(self.request))), _DONE]

    def _event(self, choices: list[Json], made: int) -> bytes:
        if self._wanted.running_usage:
            return _data(self._wording.object(choices, usage=usage(self.request, made)))
        # vLLM's completion chunks name the usage that they do not have; its chat chunks leave it out.
        return _data(self._wording.object(choices) if self._wanted.chat else self._wording.object(choices, usage=None))

    def _framed(self, events: list[bytes]) -> bytes:
        return b"".join(map(chunk, events) if self._chunked else events)

    def _end(self) -> bytes:
        return b"0\r\n\r\n" if self._chunked else b""


def _data(value: Json) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
