"""Takes known secrets out of what profilers write: the server's environment in reports, its stacks in samples."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

MASK = b"*"
RUN = "run.json"  # in a folder: a run directory, which holds no secret


def mask(folder: Path, secrets: Sequence[str]) -> list[str]:
    """Overwrite `secrets` in all files below `folder`, byte by byte: no file changes its size, and so its format holds.

    Run directories in it are passed over. What a file compresses is not looked into.

    Returns:
        one line for each file that could not be searched or changed.
    """
    words = [secret.encode() for secret in secrets if secret]
    failed = []
    for path in _files(folder) if words else ():
        try:
            _mask(path, words)
        except OSError as error:
            failed.append(f"{path.name}: {error.strerror or error}; it may hold secrets of the server's environment")
    return failed


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        if RUN in names:
            folders.clear()
            continue
        yield from (path for name in sorted(names) if (path := Path(place, name)).is_file() and not path.is_symlink())


def _mask(path: Path, words: Sequence[bytes]) -> None:
    if not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = [(at, len(word)) for word in words for at in _places(content, word)]
    if found:
        with path.open("r+b") as changing:
            for at, length in found:
                changing.seek(at)
                changing.write(MASK * length)


def _places(content: mmap.mmap, word: bytes) -> Iterator[int]:
    at = content.find(word)
    while at >= 0:
        yield at
        at = content.find(word, at + len(word))
