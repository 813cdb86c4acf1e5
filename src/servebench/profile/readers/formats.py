"""What a file is, told by its content: names lie, and the first bytes of a profiler's file do not."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from servebench.errors import UsageError

HEAD = 1 << 16  # bytes that are looked at, unpacked ones where gzip packed them
BLOCK = 1 << 20
GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file.

    Attributes:
        key: of its reader; empty where there is none.
        title: what it is, as in "it seems to be ...".
        advice: how to get from it to something that can be read.
    """

    key: str
    title: str
    advice: str = ""


QDSTRM = "QdstrmImporter, which comes with nsys, makes one of it"
NSYS = Format("nsys", "an SQLite database, as nsys exports them")
NSYS_REPORT = Format("nsys_report", "a report of Nsight Systems")
KINETO = Format("kineto", "a Chrome trace, as the torch profiler writes them")
PERF = Format("perf", "a recording of perf")
STACKS = Format("stacks", "folded stacks")
TIMELINE = Format("timeline", "a Parquet file, as servebench stores timelines in")
XPLANE = Format("xplane", "an XSpace of the XLA profiler")
NCU = Format("ncu", "a CSV table of Nsight Compute")
SANITIZER = Format("sanitizer", "a log of Compute Sanitizer")

MAGIC: tuple[tuple[bytes, Format], ...] = (
    (b"SQLite format 3\0", NSYS),
    (b"PERFILE2", PERF),
    (b"2ELIFREP", PERF),
    (b"PAR1", TIMELINE),
    (b"NVIDIA Tegra Profiler Report", NSYS_REPORT),
    (
        b"\0\xff\0\xff\0\xff\0\xffNVIDIA Nsight Systems",
        Format("", "a capture that nsys has not made a report of", QDSTRM),
    ),
    (b"NVR\0", Format("", "a report of Nsight Compute", "ncu --import FILE --csv --page raw > FILE.csv")),
    (b"ARROW1", Format("", "an Arrow file", "nsys export --type sqlite FILE.nsys-rep")),
    (b"\x89HDF\r\n\x1a\n", Format("", "an HDF5 file", "nsys export --type sqlite FILE.nsys-rep")),
    (b"PK\x03\x04", Format("", "a ZIP archive", "unpack it and give one of its files")),
    (b"\x28\xb5\x2f\xfd", Format("", "data packed by zstd", "zstd -d FILE")),
    (b"BZh", Format("", "data packed by bzip2", "bunzip2 FILE")),
    (b"\xfd7zXZ\0", Format("", "data packed by xz", "xz -d FILE")),
    (b"\x7fELF", Format("", "a program")),
    (b"%PDF", Format("", "a PDF document")),
    (b"\x89PNG", Format("", "a picture")),
    (b"<?xml", Format("", "an XML document")),
    (b"<svg", Format("", "a picture")),
    (b"<!DOCTYPE", Format("", "a web page")),
)
UNKNOWN = Format("", "data of no kind that is known here")
TEXT = Format("", "a text of no kind that is known here")
JSON = Format("", "a JSON document without traceEvents")

FOLDED = re.compile(rb"[^\n;]+(?:;[^\n;]+)* \d+\n?")


def identify(path: Path) -> Format:
    """Tell what the file `path` is.

    Raises:
        UsageError: it is missing, empty, cannot be read, is damaged from its beginning, or is no regular file.
    """
    try:
        if not path.exists():
            raise UsageError(f"{path} does not exist")
        if not path.is_file():
            raise UsageError(f"{path} is no regular file")
        packed = _is_packed(path)
        head = _head(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    if not head:
        raise UsageError(f"{path} is a damaged gzip file" if packed else f"{path} is empty")
    return _of_head(head, path, packed)


def _head(path: Path) -> bytes:
    head = b""
    for block in content(path):
        head += block
        if len(head) >= HEAD:
            break
    return head[:HEAD]


def _is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == GZIP


def content(path: Path) -> Iterator[bytes]:
    """What a file holds, unpacked where gzip packed it, in blocks; after damage nothing more comes. Raises OSError."""
    with gzip.open(path) if _is_packed(path) else path.open("rb") as file:
        try:
            yield from iter(lambda: file.read1(BLOCK), b"")  # `read` would lose what comes before the damage
        except (EOFError, gzip.BadGzipFile, zlib.error):
            return


def _of_head(head: bytes, path: Path, packed: bool) -> Format:
    for magic, found in () if packed else MAGIC:
        if head.startswith(magic):
            return found
    if not packed and is_xspace(head):
        return XPLANE
    text = None if b"\0" in head[:4096] else _of_text(head.removeprefix(b"\xef\xbb\xbf"), path)
    return text or UNKNOWN


def _of_text(head: bytes, path: Path) -> Format | None:
    start = head.lstrip()
    if start[:1] in (b"{", b"["):
        return _of_json(start, path)
    for found, matches in TEXTS:
        if matches(start):
            return found
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return None if error.start < len(head) - 4 else TEXT  # a letter may be cut at the end
    return TEXT


def _of_json(head: bytes, path: Path) -> Format:
    """An array of events, or an object that has them anywhere: some tools write them after everything else."""
    if head.startswith(b"["):
        return KINETO if re.match(rb'\[\s*\{[^}]*"ph"\s*:', head) else JSON
    return KINETO if _holds(path, b'"traceEvents"') else JSON


def _holds(path: Path, needle: bytes) -> bool:
    rest = b""
    for block in content(path):
        if needle in rest + block:
            return True
        rest = block[-len(needle) :]
    return False


def is_folded(head: bytes) -> bool:
    """Whether every whole line is names joined by semicolons, a blank and a count."""
    lines = head.split(b"\n")
    whole = [line for line in (lines[:-1] or lines) if line][:50]
    return bool(whole) and all(FOLDED.fullmatch(line) for line in whole)


def is_ncu_table(head: bytes) -> bool:
    """Whether it has the header of `ncu --csv`, perhaps after the messages that ncu writes before it."""
    return bool(re.search(rb'^"ID","Process ID","Process Name"', head, re.MULTILINE))


def is_sanitizer_log(head: bytes) -> bool:
    """Whether the tool says its name, as it does in the first line that it writes."""
    return b"========= COMPUTE-SANITIZER" in head


TEXTS: tuple[tuple[Format, Callable[[bytes], bool]], ...] = (
    (NCU, is_ncu_table),
    (SANITIZER, is_sanitizer_log),
    (STACKS, is_folded),
)


def is_xspace(head: bytes) -> bool:
    """Whether it begins with a plane (field 1) whose name (its field 2, perhaps after its number) is readable text."""
    if head[:1] != b"\x0a":
        return False
    _, at = _varint(head, 1)
    if head[at : at + 1] == b"\x08":
        _, at = _varint(head, at + 1)
    if head[at : at + 1] != b"\x12":
        return False
    size, at = _varint(head, at + 1)
    return 0 < size < 256 and head[at : at + size].startswith((b"/", b"Task Environment", b"#"))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a base-128 number at `at`: its value, and where what follows begins."""
    value = shift = 0
    while at < len(data) and shift < 70:
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            break
        shift += 7
    return value, at
