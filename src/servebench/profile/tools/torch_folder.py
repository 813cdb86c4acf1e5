"""Where a running vLLM stores the traces of its torch profiler, as its command line says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

CONFIG = "--profiler-config"
KEY = "torch_profiler_dir"


def stated_folder(pid: int) -> Path | None:
    """The folder that the command line of process `pid` names; None where it names none, or is not ours to read."""
    try:
        words = Path("/proc", str(pid), "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        folder = folder_of(words)
        return None if folder is None else Path("/proc", str(pid), "cwd").readlink() / folder
    except OSError:
        return None


def folder_of(words: Sequence[str]) -> Path | None:
    """The folder that a command names: with ``--profiler-config.torch_profiler_dir`` or in the JSON of its parent."""
    for flag, value in _flags(words):
        name = flag.replace("-", "_")
        if name == f"{CONFIG}.{KEY}".replace("-", "_"):
            return Path(value)
        if flag == CONFIG and (folder := _in_document(value)):
            return Path(folder)
    return None


def _flags(words: Sequence[str]) -> list[tuple[str, str]]:
    """Each flag with its value, whether ``=`` or a new word comes between."""
    pairs = []
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        flag, equals, value = word.partition("=")
        pairs.append((flag, value if equals else after))
    return pairs


def _in_document(text: str) -> str | None:
    try:
        document = json.loads(text)
    except ValueError:
        return None
    found = document.get(KEY) if isinstance(document, dict) else None
    return found if isinstance(found, str) and found else None
