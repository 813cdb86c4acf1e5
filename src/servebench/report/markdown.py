"""The little Markdown that records need: tables, lists and code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_ESCAPED = str.maketrans({"|": "\\|", "\n": " "})


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; all columns but the first are aligned to the right when their cells are figures."""
    body = [[cell.translate(_ESCAPED) for cell in row] for row in rows]
    marks = ["---:" if _figures([row[i] for row in body]) else "---" for i in range(len(heads))]
    lines = [[head.translate(_ESCAPED) for head in heads], marks, *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _figures(cells: Sequence[str]) -> bool:
    """Whether a column holds figures: cells that begin like numbers, or dashes."""
    return bool(cells) and all(cell[:1] in "0123456789+−–<." for cell in cells if cell)


def bullets(lines: Iterable[str]) -> str:
    """A list; empty without lines."""
    return "\n".join(f"- {' '.join(line.split())}" for line in lines)


def code(text: str) -> str:
    """`text` as code, whatever backticks are in it."""
    return f"`{text}`" if "`" not in text else f"`` {text} ``"
