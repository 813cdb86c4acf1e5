"""Reading small system files, where a value that is not there carries the reason why."""

from __future__ import annotations

import re
from pathlib import Path


class Absent(Exception):  # noqa: N818 not an error: it carries the reason why a value is missing
    """The value is not to be had; the text says why and holds no folder names."""


def text(path: Path) -> str:
    """Content of a file, without its last line break; raises Absent."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0\n ")
    except OSError as error:
        raise Absent(f"{path.name}: {error.strerror}") from None


def find(pattern: str, path: Path) -> str:
    """First group of the first line of a file that matches; raises Absent."""
    found = re.search(pattern, text(path), re.MULTILINE)
    if not found:
        raise Absent(f"{path.name} does not say")
    return found[1].strip()
