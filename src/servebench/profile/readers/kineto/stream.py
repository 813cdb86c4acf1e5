"""The events of a trace, a piece of the file at a time: traces of gigabytes are read in a few hundred megabytes.

The text is cut between two events, where `} , {` says that such a place may be. A cut is right when what lies before it
parses as a list: inside a string or a nested list it would not.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec

PIECE = 8 << 20
PATIENCE = 8 * PIECE  # text without a single place to cut at
HEAD_LIMIT = 2 * PIECE
SEAM = re.compile(rb"\}(\s*,\s*)\{")
SEAM_WINDOW = 1 << 16
SEAMS_TRIED = 8
BEGIN = re.compile(rb'"traceEvents"\s*:\s*\[')
NOT_JSON = re.compile(rb"(:\s*)[-+]?(?:nan|inf|NaN|Infinity)(?=\s*[,}\]])")


SPELLING = {"size": "bytes", "graph": "graph id", "allocated": "Total Allocated", "memory_type": "Device Type"}


class Args(msgspec.Struct, gc=False, rename=SPELLING):
    """What is used of an event's details; any JSON value, for operators may have details of the same names."""

    name: Any = None
    correlation: Any = None
    device: Any = None
    stream: Any = None
    size: Any = None
    graph: Any = None
    allocated: Any = None
    memory_type: Any = None


class Event(msgspec.Struct, gc=False):
    """One event; `ts` and `dur` in µs. A double resolves 0.25 µs of the time since 1970, and 1 ns since a base."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: Args | None = None


_events = msgspec.json.Decoder(list[Event])
_object = msgspec.json.Decoder(dict[str, Any])


class EventStream:
    """The events of one file, in lists; a single pass.

    Attributes:
        facts: what the file says beside its events; complete after the pass, for some versions write it at the end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, Any] = {}
        self._mends = False

    def __iter__(self) -> Iterator[list[Event]]:
        """Yield lists of events.

        Raises:
            ValueError: it is no such trace, or not a whole one.
            OSError: it cannot be read.
        """
        try:
            with _opened(self.path) as file:
                yield from self._lists(file)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._damaged(str(error)) from None

    def _lists(self, file: IO[bytes]) -> Iterator[list[Event]]:
        rest = self._read_head(file)
        while piece := file.read(PIECE):
            events, rest = self._cut(rest + piece)
            if len(rest) > PATIENCE:
                raise self._damaged("its events cannot be told apart")
            yield events
        yield self._read_end(rest)

    def _read_head(self, file: IO[bytes]) -> bytes:
        """Read what comes before the events; return what of them was read with it."""
        text = b""
        while len(text) < HEAD_LIMIT and (piece := file.read(PIECE)):
            text += piece
            if found := BEGIN.search(text):
                self._learn(text[: found.start()].rstrip(b", \t\r\n") + b"}")
                return text[found.end() :]
        raise ValueError(f"{self.path} is no trace of torch's profiler: it has no list of traceEvents")

    def _cut(self, text: bytes) -> tuple[list[Event], bytes]:
        """Return the events up to a cut, and the text after it; no events where there is no right cut."""
        text = _mended(text) if self._mends else text
        for before, after in _seams(text):
            events = self._decoded(text[:before])
            if events is not None:
                return events, text[after:]
        if not self._mends and _mended(text) != text:
            self._mends = True
            return self._cut(text)
        return [], text

    def _read_end(self, text: bytes) -> list[Event]:
        """Return the last events, and learn what comes after them."""
        for candidate in (text, _mended(text)):
            for found in reversed(list(re.finditer(rb"\]", candidate))):
                tail = b"{" + candidate[found.end() :].lstrip(b", \t\r\n")
                if _is_object(tail) and (events := self._decoded(candidate[: found.start()])) is not None:
                    self._learn(tail)
                    return events
        raise self._damaged("the list of its events does not end")

    def _decoded(self, text: bytes) -> list[Event] | None:
        """The events of a text; None where it is no list of anything."""
        try:
            return _events.decode(b"[" + text + b"]")
        except msgspec.ValidationError as error:
            what = str(error).partition(" - ")[0]  # where in the text would be counted from the last cut
            raise ValueError(f"{self.path} is no trace of torch's profiler: in one of its events, {what}") from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _learn(self, text: bytes) -> None:
        try:
            self.facts |= _object.decode(_mended(text))
        except msgspec.DecodeError as error:
            raise self._damaged(str(error)) from None

    def _damaged(self, what: str) -> ValueError:
        return ValueError(
            f"{self.path} is not a whole trace ({what}): the profiler was ended while it wrote, or the disk was full"
        )


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast("IO[bytes]", gzip.open(path)) if packed else path.open("rb")


def _seams(text: bytes) -> Iterator[tuple[int, int]]:
    """Places where a cut may be right, the last ones first: the end of one event, the begin of the next."""
    near = list(SEAM.finditer(text, max(0, len(text) - SEAM_WINDOW))) or list(SEAM.finditer(text))
    for found in near[: -SEAMS_TRIED - 1 : -1]:
        yield found.start() + 1, found.end() - 1


def _is_object(text: bytes) -> bool:
    try:
        _object.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def _mended(text: bytes) -> bytes:
    """Make JSON of what Kineto writes in its place: infinite bandwidths, and names in another encoding."""
    return NOT_JSON.sub(rb"\1null", text).decode("utf-8", "replace").encode()
