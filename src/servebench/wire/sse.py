"""Server-sent events, parsed from bytes as the WHATWG HTML standard (§9.2.6) says, in pieces of any size."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class SSEParser:
    r"""Incremental parser; feed it body bytes in order and collect the events that they complete.

    There is no limit on the length of a line. A last event that lacks only its closing blank line is delivered by
    `finish`, where the standard would drop it: servers that close right after ``data: [DONE]\n`` are common.

    Attributes:
        comments: comment lines seen (``: ping``), which show that the server is alive.
    """

    __slots__ = ("_at_start", "_consumed", "_data", "_data_end", "_rest", "_skip_lf", "_type", "comments")

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # an unfinished line, in pieces
        self._consumed = 0  # offset in the body of the first byte of `_rest`
        self._data: list[bytes] = []
        self._data_end = 0
        self._type = b""
        self._at_start = True
        self._skip_lf = False
        self.comments = 0

    @property
    def pending_end(self) -> int | None:
        """Of an event whose blank line has not come: the offset at the end mark of its last data line so far."""
        return self._data_end if self._data else None

    def feed(self, piece: bytes) -> tuple[list[bytes], list[int], dict[int, bytes]]:
        """Take more of the body.

        Returns:
            data: the payload of each completed event; several ``data`` lines are joined with a newline.
            ends: for each, the offset in the body just past its last data line, at that line's end mark. The read that
                holds this offset is the one in which the event's content was complete.
            types: event types other than the default, by position in `data`.
        """
        if self._at_start and not self._rest and piece[:1] not in (b"", _BOM[:1]):
            self._at_start = False
        if self._between_events:
            plain = self._plain(piece)
            if plain is not None:
                return plain
        return self._lines(piece)

    def feed_pieces(self, pieces: Sequence[bytes]) -> list[bytes] | None:
        """Take pieces of the body of which each is one plain event, as servers send them: a write for each token.

        Returns:
            The payload of each piece; None, and nothing is taken, when any piece is something else.
        """
        body = b"".join(pieces)
        if not self._between_events or body.count(b"\n") != 2 * len(pieces) or b"\r" in body:
            return None
        datas = [piece[6:-2] for piece in pieces if piece[:6] == b"data: " and piece[-2:] == b"\n\n"]
        if len(datas) != len(pieces):
            return None
        self._consumed += len(body)
        return datas

    @property
    def _between_events(self) -> bool:
        return not (self._at_start or self._rest or self._data or self._skip_lf or self._type)

    def finish(self) -> tuple[list[bytes], list[int], dict[int, bytes]]:
        """Deliver an event whose lines are complete but whose blank line never came."""
        datas: list[bytes] = []
        ends: list[int] = []
        types: dict[int, bytes] = {}
        self._dispatch(datas, ends, types)
        return datas, ends, types

    def _plain(self, piece: bytes) -> tuple[list[bytes], list[int], dict[int, bytes]] | None:
        """The usual case, one ``data: `` line an event and newline marks, without a look at each line."""
        if not piece.endswith(b"\n\n") or b"\r" in piece:
            return None
        blocks = piece.split(b"\n\n")
        blocks.pop()
        datas = [block[6:] for block in blocks if block[:6] == b"data: "]
        if len(datas) != len(blocks) or piece.count(b"\n") != 2 * len(blocks):
            return None
        ends = []
        position = self._consumed
        for block in blocks:
            position += len(block)
            ends.append(position)
            position += 2
        self._consumed = position
        return datas, ends, {}

    def _lines(self, piece: bytes) -> tuple[list[bytes], list[int], dict[int, bytes]]:
        datas: list[bytes] = []
        ends: list[int] = []
        types: dict[int, bytes] = {}
        if self._skip_lf and piece:
            self._skip_lf = False
            if piece[:1] == b"\n":
                piece = piece[1:]
                self._consumed += 1
        if not (self._at_start or b"\n" in piece or b"\r" in piece):
            if piece:
                self._rest.append(piece)
            return datas, ends, types
        # Joined once a line, and only the new bytes searched: an event of megabytes in thousands of reads stays linear.
        buffer = b"".join((*self._rest, piece))
        searched = len(buffer) - len(piece)
        if self._at_start:
            if len(buffer) < 3 and _BOM.startswith(buffer):
                self._rest = [buffer] if buffer else []
                return datas, ends, types
            self._at_start = False
            searched = 0
            if buffer.startswith(_BOM):
                buffer = buffer[3:]
                self._consumed += 3
        start = 0
        for match in _LINE_END.finditer(buffer, searched):
            self._line(buffer[start : match.start()], self._consumed + match.start(), datas, ends, types)
            start = match.end()
        self._skip_lf = start == len(buffer) and buffer.endswith(b"\r")
        self._rest = [buffer[start:]] if start < len(buffer) else []
        self._consumed += start
        return datas, ends, types

    def _line(self, line: bytes, end: int, datas: list[bytes], ends: list[int], types: dict[int, bytes]) -> None:
        if not line:
            self._dispatch(datas, ends, types)
            return
        name, colon, value = line.partition(b":")
        if colon and not name:
            self.comments += 1
            return
        if value[:1] == b" ":
            value = value[1:]
        if name == b"data":
            self._data.append(value)
            self._data_end = end
        elif name == b"event":
            self._type = value

    def _dispatch(self, datas: list[bytes], ends: list[int], types: dict[int, bytes]) -> None:
        if self._data:
            if self._type and self._type != b"message":
                types[len(datas)] = self._type
            datas.append(b"\n".join(self._data))
            ends.append(self._data_end)
            self._data = []
        self._type = b""
