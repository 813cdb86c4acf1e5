"""What commands write besides reports: one-line messages on stderr, and JSON on stdout."""

from __future__ import annotations

import json
from typing import Any

import click

PROGRAM = "servebench"


def one_line(text: str) -> str:
    """Fold every run of white space, line breaks too, into one blank."""
    return " ".join(text.split())


def print_error(text: str, kind: str = "error") -> None:
    """Write `servebench: error: text` to stderr; an engine's last log lines may follow the first line of `text`."""
    click.echo(f"{PROGRAM}: {kind}: {text}", err=True)


def print_warning(text: str) -> None:
    """Write `servebench: warning: text` to stderr, on one line."""
    print_error(one_line(text), kind="warning")


def print_json(document: Any) -> None:
    """Write `document` to stdout as strict JSON: NaN and infinities, which JSON has not, raise ValueError."""
    click.echo(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False))
