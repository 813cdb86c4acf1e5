"""The bytes that the ground-truth server sends, made ready so that a token costs one concatenation."""

from __future__ import annotations

import json
from typing import Any

MODEL = "ground-truth"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_MARK = 1_000_000_000_000_000_000  # as long as any CLOCK_REALTIME until 2286, so the chunk size never changes


def chunk(data: bytes) -> bytes:
    """Frame `data` as one HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(payload: dict[str, Any]) -> bytes:
    """One server-sent event in one chunk."""
    return chunk(b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n")


STREAM_TAIL = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def token_parts(chat: bool, finish: str | None) -> tuple[bytes, bytes]:
    """What stands before and behind `t_ns` in a token's chunk."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    choice |= {"delta": {"content": " tok"}} if chat else {"text": " tok"}
    kind = "chat.completion.chunk" if chat else "text_completion"
    payload = {"t_ns": _MARK, "id": "gt-1", "object": kind, "created": 1, "model": MODEL, "choices": [choice]}
    before, behind = event(payload).split(str(_MARK).encode())
    return before, behind


def usage(prompt: int, completion: int) -> dict[str, int]:
    """The counts as OpenAI spells them."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def usage_event(chat: bool, prompt: int, completion: int) -> bytes:
    """The chunk that carries nothing but the counts."""
    kind = "chat.completion.chunk" if chat else "text_completion"
    head = {"id": "gt-1", "object": kind, "created": 1, "model": MODEL}
    return event(head | {"choices": [], "usage": usage(prompt, completion)})


def whole(chat: bool, prompt: int, completion: int) -> bytes:
    """The answer to a request with `stream: false`."""
    text = " tok" * completion
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    kind = "chat.completion" if chat else "text_completion"
    body = {"id": "gt-1", "object": kind, "created": 1, "model": MODEL, "choices": [choice]}
    return reply(200, body | {"usage": usage(prompt, completion)})


def reply(status: int, body: Any) -> bytes:
    """A JSON response."""
    data = json.dumps(body, separators=(",", ":")).encode()
    reason = {200: "OK", 400: "Bad Request", 404: "Not Found"}[status]
    head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def failure(status: int, message: str) -> bytes:
    """An error in OpenAI's form."""
    return reply(status, {"error": {"message": message, "type": "invalid_request_error", "code": status}})


MODELS = {
    "object": "list",
    "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "servebench", "max_model_len": 1_000_000}],
}
