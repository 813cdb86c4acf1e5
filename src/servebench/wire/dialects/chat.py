"""``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Any

import msgspec

from servebench.wire.dialects.base import Prompt


class Chat:
    """Each prompt is the one message of a user."""

    name = "chat"
    path = "/v1/chat/completions"

    def body(self, model: str, prompt: Prompt, max_tokens: int, stream: bool, extras: dict[str, Any]) -> bytes:
        """The JSON body; raises TypeError for a prompt of token ids, which this API has no field for."""
        if not isinstance(prompt, str):
            raise TypeError("the chat API takes text, not token ids")
        fields: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "stream": stream,
        }
        if stream:
            fields["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(fields | extras)
