"""How the endpoint is spoken to; its URL comes from the command line."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator

from servebench.scenario.strict import Flag, PositiveDuration, Strict, Text, problem
from servebench.units import describe

SECRET_HEADERS = re.compile(r"authorization|cookie|.*(api[-_]?key|token|secret|password)", re.IGNORECASE)


class Endpoint(Strict):
    """The dialect, the model and the patience.

    Attributes:
        api: ``chat`` or ``completions``.
        model: its name at the server; ``auto`` takes the server's only one.
        stream: whether answers are streamed.
        connect_timeout: seconds until a connection stands.
        idle_timeout: seconds without a byte.
        timeout: seconds for the whole request.
        headers: sent with every request; no credentials.
        extra_body: further keys of the request's body.
    """

    api: Literal["chat", "completions"] = "chat"
    model: Text = "auto"
    stream: Flag = True
    connect_timeout: PositiveDuration = 10.0
    idle_timeout: PositiveDuration = 60.0
    timeout: PositiveDuration = 600.0
    headers: dict[str, str] = Field(default_factory=dict)
    extra_body: dict[str, Any] = Field(default_factory=dict)

    @field_validator("headers", mode="before")
    @classmethod
    def _no_secrets(cls, headers: Any) -> Any:
        if not isinstance(headers, dict):
            raise problem(f"expected a mapping of header names to values, not {describe(headers)}")
        for name, value in headers.items():
            if SECRET_HEADERS.fullmatch(name):
                raise problem("credentials are taken from the environment only, never from a scenario", name)
            if not isinstance(value, (str, int, float)) or "\n" in str(value) or "\r" in str(value):
                raise problem(f"expected one line of text, not {describe(value)}", name)
        return {name: str(value) for name, value in headers.items()}

    @field_validator("extra_body", mode="before")
    @classmethod
    def _no_own_keys(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            raise problem(f"expected a mapping of keys of the request's body, not {describe(body)}")
        for key in ("model", "messages", "prompt", "stream", "max_tokens"):
            if key in body:
                raise problem("servebench sets this key itself", key)
        return body
