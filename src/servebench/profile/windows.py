"""Capture windows: which traffic they are meant for, and how long they last."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from servebench.errors import UsageError, did_you_mean
from servebench.profile.tool import Bounds
from servebench.units import parse_duration

KINDS = {
    "prefill": "long prompts, one token each, back to back: the engine does nothing but prefill",
    "decode": "short prompts, long answers, armed once every request has its first token: nothing but decode",
    "mixed": "the scenario's own load, armed just before a long prompt is due; without such, once it has settled",
}
MIXED_STEPS = 4  # a mixed window takes so many times the steps of the others: it must meet both kinds


@dataclass(frozen=True, slots=True)
class Window:
    """One window.

    Attributes:
        name: its folder: the kind, or "at-12s-14s".
        kind: "prefill", "decode", "mixed" or "range".
        begin_s, end_s: of a range, seconds after the scenario's load began.
    """

    name: str
    kind: str
    begin_s: float | None = None
    end_s: float | None = None

    @property
    def is_isolating(self) -> bool:
        """Whether its load is one of its own, and not the scenario's."""
        return self.kind in ("prefill", "decode")

    def bounds(self, given: Bounds) -> Bounds:
        """How long it lasts, for what the user or the tool gave for all of them."""
        if self.begin_s is not None and self.end_s is not None:
            return Bounds(self.end_s - self.begin_s)
        if self.kind == "mixed" and given.steps is not None:
            return replace(given, steps=MIXED_STEPS * given.steps)
        return given


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """What a user wants of a profiler.

    Attributes:
        tool: its name, see `tools.NAMES`.
        windows: in the order in which they are captured; empty takes the tool's own.
        seconds, steps: bounds of a window; None takes the tool's own.
        concurrency: requests that decode at a time in the decode window; None takes what the scenario has, at least 4.
        settings: the tool's options.
    """

    tool: str
    windows: tuple[Window, ...] = ()
    seconds: float | None = None
    steps: int | None = None
    concurrency: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def bounds(self, default: Bounds) -> Bounds:
        """The bounds: as given, else the tool's. Giving seconds alone lifts the tool's limit of steps."""
        if self.seconds is None and self.steps is None:
            return default
        return Bounds(self.seconds if self.seconds is not None else default.seconds, self.steps)


def parse_window(text: str) -> Window:
    """Read "prefill", "decode", "mixed", or a range of time such as "12s..14s".

    Raises:
        UsageError: anything else.
    """
    if text in KINDS:
        return Window(text, text)
    found = re.fullmatch(r"(.+)\.\.(.+)", text)
    if found is None:
        known = ", ".join(KINDS)
        raise UsageError(f'window "{text}": expected {known} or a range such as 12s..14s{did_you_mean(text, KINDS)}')
    try:
        begin, end = (parse_duration(part.strip()) for part in found.groups())
    except ValueError as error:
        raise UsageError(f'window "{text}": {error}') from None
    if not 0 <= begin < end:
        raise UsageError(f'window "{text}": it must begin at 0s or later and end after its beginning')
    return Window(f"at-{begin:g}s-{end:g}s", "range", begin, end)


def parse_windows(texts: Sequence[str]) -> tuple[Window, ...]:
    """Read several, each once, also from one text with commas between them.

    Raises:
        UsageError: one that cannot be read, or the same one twice.
    """
    windows = tuple(parse_window(part.strip()) for text in texts for part in text.split(","))
    names = [window.name for window in windows]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise UsageError(f'window "{name}" is asked for twice')
    return windows


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """Read ``KEY=VALUE`` texts. Raises UsageError for one without an equals sign, or a key given twice."""
    settings: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f'profile option "{text}": expected KEY=VALUE')
        if key in settings:
            raise UsageError(f'profile option "{key}" is given twice')
        settings[key] = value
    return settings
