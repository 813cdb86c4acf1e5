"""The text that `perf script` makes of a recording: a header, then for each sample a line and its frames."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from servebench.clock import Anchor

FIELDS = "comm,pid,tid,time,event,period,ip,sym,dso"

# From the right: a thread's name may hold spaces, digits and colons.
_START = r"^\s*(.*)\s+(-?\d+)(?:/(-?\d+))?\s+(?:\[\d+\]\s+)?(\d+)\.(\d{6,9}):\s+(?:\d+\s+)?"
_HEAD = re.compile(_START + r"(\S+):\s*$")
_HEAD_AND_FRAME = re.compile(_START + r"(\S+):\s+([0-9a-f]+ .+)$")
_FRAME = re.compile(r"^\s*[0-9a-f]+\s(.*)\s\((.*)\)$")
_REFERENCE = re.compile(r"^# reference time: .* = (\d+)\.(\d+) \(TOD\) = (\d+)\.(\d+) \(monotonic\)")
_EVENT = re.compile(r"^# event : name = ([^,]+),.*?sample_freq \} = (\d+)")
_LOST = re.compile(r"PERF_RECORD_LOST\D+(\d+)")
_HEADERS = {"perf version": "version", "cmdline": "command", "nrcpus online": "cpus", "arch": "arch"}


class Sample(NamedTuple):
    """A thread as it was found at one instant.

    Attributes:
        name: of the thread.
        process, thread: their numbers.
        time_ns: on the recording's clock.
        event: what made perf look, such as "cpu-clock" or "cycles".
        frames: "address symbol (module)", innermost first as perf prints them.
    """

    name: str
    process: int
    thread: int
    time_ns: int
    event: str
    frames: tuple[str, ...]


def split_frame(text: str) -> tuple[str, str]:
    """Return symbol and module of a frame's line; both may be `[unknown]`.

    Module names may hold brackets: `(/memfd:code (deleted))`.
    """
    body = text.strip().partition(" ")[2].removesuffix(")")
    deleted = " (deleted)" if body.endswith(" (deleted)") else ""
    symbol, _, module = body.removesuffix(deleted).rpartition(" (")
    if not symbol and body.startswith("("):  # no symbol at all
        module = body[1:].removesuffix(deleted)
    return symbol or "[unknown]", module + deleted


@dataclass(slots=True)
class PerfText:
    """What the text says besides its samples, filled while they are read.

    Attributes:
        facts: of the recording, from its header.
        reference: an instant on both clocks, where it was recorded by CLOCK_MONOTONIC.
        malformed: lines that are neither a sample nor a frame, and those that name no instant.
        lost: samples that the kernel dropped because perf fetched them too late.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    reference: Anchor | None = None
    malformed: int = 0
    lost: int = 0
    _known: set[str] = field(default_factory=set)

    def samples(self, lines: Iterable[str]) -> Iterator[Sample]:
        """Read the text line by line; what is not understood is counted and left out."""
        head: re.Match[str] | None = None
        frames: list[str] = []
        inside = False
        for line in lines:
            if not line.strip():
                if head is not None:
                    yield _sample(head, frames)
                head, frames, inside = None, [], False
            elif line.startswith("#"):
                self._header(line)
            elif inside:
                self._frame(line, frames)
            elif (whole := _HEAD_AND_FRAME.match(line)) is not None:  # recorded without stacks: no blank lines either
                yield _sample(whole, [whole[7]])
            else:
                head, inside = self._head(line), True
        if head is not None:
            yield _sample(head, frames)

    def _head(self, line: str) -> re.Match[str] | None:
        match = _HEAD.match(line)
        if match is None:
            lost = _LOST.search(line)
            self.lost += int(lost[1]) if lost else 0
            self.malformed += not lost
        return match

    def _frame(self, line: str, frames: list[str]) -> None:
        text = line.strip()
        if text in self._known or _FRAME.match(text):
            self._known.add(text)  # a stack's outer frames are the same in nearly every sample
            frames.append(text)
        else:
            self.malformed += 1

    def _header(self, line: str) -> None:
        title, colon, value = line.removeprefix("# ").partition(" : ")
        if colon and title in _HEADERS:
            self.facts[_HEADERS[title]] = value.strip()
        event = _EVENT.match(line)
        if event is not None and not event[1].startswith("dummy"):
            name, _, modifiers = event[1].partition(":")
            self.facts.setdefault("event", name)
            self.facts.setdefault("kernel", "u" not in modifiers)
            self.facts.setdefault("frequency", int(event[2]))
        reference = _REFERENCE.match(line)
        if reference is not None:
            wall, monotonic = _nanoseconds(*reference.group(1, 2)), _nanoseconds(*reference.group(3, 4))
            self.reference = Anchor(wall, monotonic, 0)


def _sample(head: re.Match[str], frames: list[str]) -> Sample:
    name, process, thread, seconds, fraction, event = head.group(1, 2, 3, 4, 5, 6)
    who = name.strip(), int(process), int(thread or process)
    return Sample(*who, _nanoseconds(seconds, fraction), event.rstrip(":"), tuple(frames))


def _nanoseconds(seconds: str, fraction: str) -> int:
    return int(seconds) * 1_000_000_000 + int(fraction.ljust(9, "0")[:9])
