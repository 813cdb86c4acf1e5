"""``POST /v1/completions``."""

from __future__ import annotations

from typing import Any

import msgspec

from servebench.wire.dialects.base import Prompt


class Completions:
    """The prompt is text, or token ids where the server takes them."""

    name = "completions"
    path = "/v1/completions"

    def body(self, model: str, prompt: Prompt, max_tokens: int, stream: bool, extras: dict[str, Any]) -> bytes:
        """The JSON body."""
        fields: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "stream": stream}
        if stream:
            fields["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(fields | extras)
