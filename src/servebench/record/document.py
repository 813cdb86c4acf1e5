"""The JSON document that makes a directory what it is, such as a run's run.json: read with a clear word, kept whole."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

from servebench.errors import UsageError


def read_document(file: Path, schema: int, what: str) -> dict[str, Any]:
    """The document in `file`, of the version `schema`.

    Args:
        what: its directory would be with it, such as "run directory".

    Raises:
        UsageError: there is none, it cannot be read, it is damaged, or of another version.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{file.parent} is no {what}: it has no {file.name}") from None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{file} is damaged: {error}") from error
    found = document.get("schema") if isinstance(document, dict) else None
    if found != schema:
        raise UsageError(f"{file} has schema {found}; this version of servebench reads schema {schema}")
    return dict(document)


def replace_document(file: Path, document: dict[str, Any]) -> None:
    """Replace a document as a whole; after a crash at any instant the old or the new one is there. Raises OSError."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    scratch = file.with_name(f".{file.name}.new")
    with scratch.open("w", encoding="utf-8") as writing:
        writing.write(text + "\n")
        writing.flush()
        os.fsync(writing.fileno())
    scratch.replace(file)
    sync(file.parent)


def make_unused(parent: Path, stem: str) -> Path:
    """Make the folder `stem` in `parent`, or the first of ``stem-2``, ``stem-3``, ... that is free. Raises OSError."""
    parent.mkdir(parents=True, exist_ok=True)
    for name in itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2))):
        try:
            (parent / name).mkdir()
        except FileExistsError:
            continue
        return parent / name
    raise AssertionError("the names never end")


def sync(directory: Path) -> None:
    """Make a rename in `directory` durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
