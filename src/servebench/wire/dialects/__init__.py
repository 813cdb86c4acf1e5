"""The OpenAI dialects: how a request is written, and how an event becomes tokens."""

from __future__ import annotations

from servebench.wire.dialects.base import Dialect, Prompt
from servebench.wire.dialects.chat import Chat
from servebench.wire.dialects.completions import Completions

_DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (Chat(), Completions())}


def get_dialect(api: str) -> Dialect:
    """The dialect called `api` ("chat" or "completions"); raises KeyError for another name."""
    return _DIALECTS[api]


__all__ = ["Chat", "Completions", "Dialect", "Prompt", "get_dialect"]
