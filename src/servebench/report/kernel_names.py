"""Names of kernels and functions in a table: C++ names of hundreds of characters, cut where the least is lost."""

from __future__ import annotations

import re
from collections.abc import Callable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

ELLIPSIS = "…"
LEAST = 16  # columns; below, a name tells nothing
LEAST_INSIDE = 6  # columns inside brackets; fewer tell nothing either
UNNAMED = "(without a name)"
RETURN_TYPE = re.compile(r"^(?:static |inline )*(?:void|int|float|double|bool|auto) (?=\S)")
ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\{anonymous\}::|<unnamed>::|_GLOBAL__N__\w+::")


def shorten(name: str, width: int) -> str:
    """The name in at most `width` columns.

    Of a C++ name that is too long go, until it fits, the return type and anonymous namespaces, the arguments, what is
    inside inner template brackets and the namespaces in front; then the middle of what is inside the outer brackets,
    which is what tells the instances of one kernel apart; then the middle of it all.
    """
    name = " ".join(name.split()).replace("> >", ">>") or UNNAMED
    for step in STEPS:
        if len(name) <= width:
            return name
        name = step(name) or name
    return middle(_with_less_in_brackets(name, width), width)


def middle(text: str, width: int) -> str:
    """The text with its middle taken out, a little more kept of the beginning than of the end."""
    if len(text) <= width:
        return text
    tail = max(0, (width - 1) * 2 // 5)
    head = max(0, width - 1 - tail)
    return (text[:head] + ELLIPSIS + (text[-tail:] if tail else "")).replace(ELLIPSIS * 2, ELLIPSIS)


def _without_type(name: str) -> str:
    return RETURN_TYPE.sub("", ANONYMOUS.sub("", name))


def _without_arguments(name: str) -> str:
    """Cut the parenthesis that closes the name, with what follows it, such as ` const`."""
    name = re.sub(r"\)\s*(?:const|\[.*\])?\s*$", ")", name)
    if not name.endswith(")"):
        return name
    depth = 0
    for at in range(len(name) - 1, 0, -1):
        depth += (name[at] == ")") - (name[at] == "(")
        if not depth:
            return name[:at].rstrip()
    return name


def _without_inner_brackets(name: str) -> str:
    """``a<b<c>, d>`` becomes ``a<b<…>, d>``."""
    return _emptied(name, 2)


def _with_less_in_brackets(name: str, width: int) -> str:
    """``kernel<long arguments>`` becomes ``kernel<long…nts>``; a name without brackets stays."""
    start, end = name.find("<"), name.rfind(">")
    room = width - (len(name) - (end - start - 1))
    if not 0 <= start < end or _is_odd(name):
        return name
    return name[: start + 1] + (middle(name[start + 1 : end], room) if room >= LEAST_INSIDE else ELLIPSIS) + name[end:]


def _emptied(name: str, level: int) -> str:
    """Replace what is inside angle brackets of this depth by three dots; a name with other uses of < stays."""
    if _is_odd(name):
        return name
    kept, depth = [], 0
    for letter in name:
        depth -= letter == ">"
        if depth < level:
            kept.append(letter)
        depth += letter == "<"
        if letter == "<" and depth == level:
            kept.append(ELLIPSIS)
    return "".join(kept)


def _is_odd(name: str) -> bool:
    """Whether its angle brackets need not be pairs: an operator's name, a lambda's type."""
    return name.count("<") != name.count(">") or "operator<" in name or "operator>" in name or "->" in name


def _without_namespaces(name: str) -> str:
    """``at::native::kernel<…>`` becomes ``kernel<…>``; only before the first bracket."""
    head, bracket, rest = name.partition("<")
    return head.rpartition("::")[2] + bracket + rest


STEPS: tuple[Callable[[str], str], ...] = (
    _without_type,
    _without_arguments,
    _without_inner_brackets,
    _without_namespaces,
)


class Name:
    """A name as a table's cell: as long as there is room. It is never read as markup, whatever brackets it holds."""

    def __init__(self, name: str, style: str = "") -> None:
        self.name = name
        self.style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(shorten(self.name, options.max_width), style=self.style, no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(LEAST, len(self.name) or LEAST), max(LEAST, len(self.name)))
