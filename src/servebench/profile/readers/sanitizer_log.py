"""What Compute Sanitizer found, from its log.

Each line begins with "=========". A report is a line without indentation and the indented ones after it; a line with
nothing ends it. The last lines are summaries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from servebench.profile.tool import ProfileError

PREFIX = "========="

_SUMMARIES = {
    "errors": re.compile(r"ERROR SUMMARY: ([\d,]+) errors?$"),
    "hazards": re.compile(r"RACECHECK SUMMARY: [\d,]+ hazards? displayed \(([\d,]+) errors?, [\d,]+ warnings?\)"),
}
_NOT_PRINTED = re.compile(r"ERROR SUMMARY: ([\d,]+) errors? were not printed")
_LEAKS = re.compile(r"LEAK SUMMARY: ([\d,]+) bytes leaked in ([\d,]+) allocations?")
_KINDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"Invalid __(\w+?)__ (read|write|atomic\w*) of size"), r"invalid \1 \2"),
    (re.compile(r"Uninitialized __(\w+?)__ memory read"), r"uninitialized \1 read"),
    (re.compile(r"(?:Error|Warning|Warn|Info)\b.*Potential (\w+) hazard detected", re.I), r"\1 hazard"),
    (re.compile(r"(?:Error|Warning|Warn|Info)\b.*Race reported between (Read|Write).*", re.I), r"race with a \1"),
    (re.compile(r"Leaked [\d,]+ bytes"), "leak"),
    (re.compile(r"Barrier error detected\. *(.*)"), r"barrier error: \1"),
    (re.compile(r"Malloc/Free Error encountered ?: ?(.*)"), r"malloc or free: \1"),
    (re.compile(r"Program hit (\S+) .*on CUDA API call to (\w+)"), r"\1 of \2"),
    (re.compile(r"(Fatal UVM \w+ fault)"), r"\1"),
)
_WARNING = re.compile(r"(?:Warn(?:ing)?|Info)\b", re.I)
_FAILED = re.compile(
    r"(?:Internal Sanitizer Error|Internal Error|No attachable process found|Target application terminated before).*"
)
_BYTES = re.compile(r"Leaked ([\d,]+) bytes")
_HAZARDS = re.compile(r"\[([\d,]+) hazards?\]")
# from version to version: kernel+0x10 in file:3, kernel:0x10 in file:3, 0x10 in file:3:kernel, 0x10 in kernel
_PLACES = (
    re.compile(r"\bat (?P<kernel>(?!0x).+?)(?:\+|:)0x[0-9a-fA-F]+(?: in (?P<place>\S+))?(?: \[|$)"),
    re.compile(r"\bat 0x[0-9a-fA-F]+ in (?P<place>\S+:\d+):(?P<kernel>.+)$"),
    re.compile(r"\bat 0x[0-9a-fA-F]+ in (?P<kernel>.+)$"),
)


@dataclass(frozen=True, slots=True)
class _Report:
    """One report, or equal ones together."""

    kind: str
    severity: str  # "error" or "warning"
    kernel: str | None
    place: str | None
    example: str
    count: int = 1
    bytes: int | None = None

    @property
    def key(self) -> tuple[str, str, str | None, str | None]:
        return self.kind, self.severity, self.kernel, self.place


def read_sanitizer(path: Path) -> dict[str, Any]:
    """Read a log of one or more of its tools.

    Returns:
        "passed": whether nothing was found; None with a "reason" where the tool did not finish or checked nothing.
        "errors": as its summaries count them; None without a summary.
        "leaked_bytes": None where leaks were not looked for.
        "findings": equal reports together, errors first: "kind", "severity", "kernel", "place" (file and line; None
        where the kernel was built without them), "count" (for races, of hazards), "bytes" (of leaks), "example".
        "not_printed": errors beyond the tool's limit of printing.

    Raises:
        ProfileError: it cannot be read, or the sanitizer wrote nothing.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror or error}") from None
    said = [line.removeprefix(PREFIX) for line in lines if line.startswith(PREFIX)]
    if not said:
        raise ProfileError(f"{path} is no log of Compute Sanitizer: no line begins with {PREFIX}")
    errors, leaked, reason = _errors(said), _leaked(said), _failure(said)
    if errors is None and reason is None:
        reason = "the log has no summary: the sanitizer did not finish"
    return {
        "passed": None if reason else not errors and not leaked,
        "reason": reason,
        "errors": errors,
        "leaked_bytes": leaked,
        "findings": _findings(said),
        "not_printed": sum(_whole(found[1]) for line in said if (found := _NOT_PRINTED.search(line))),
    }


def _errors(said: list[str]) -> int | None:
    """What the summaries count; a log may have several, of several processes."""
    found = [_whole(match[1]) for line in said for each in _SUMMARIES.values() if (match := each.search(line))]
    return sum(found) if found else None


def _leaked(said: list[str]) -> int | None:
    found = [_whole(match[1]) for line in said if (match := _LEAKS.search(line))]
    return sum(found) if found else None


def _failure(said: list[str]) -> str | None:
    """Why nothing can be concluded, in the sanitizer's own words."""
    return next((match[0].strip() for line in said if (match := _FAILED.search(line))), None)


def _findings(said: list[str]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str, str | None, str | None], _Report] = {}
    for report in filter(None, map(_report, _blocks(said))):
        before = found.get(report.key)
        if before is not None:
            total = None if before.bytes is None else before.bytes + (report.bytes or 0)
            report = replace(before, count=before.count + report.count, bytes=total)
        found[report.key] = report
    ordered = sorted(found.values(), key=lambda each: (each.severity, -each.count))
    return [{name: getattr(each, name) for name in _Report.__slots__} for each in ordered]


def _blocks(said: list[str]) -> Iterator[list[str]]:
    """The reports, each a list of lines without their prefix."""
    block: list[str] = []
    for line in said:
        starts = line.startswith(" ") and not line.startswith("  ")
        if block and (starts or not line.strip()):
            yield block
            block = []
        if line.strip() and (starts or block):
            block.append(line.strip())
    if block:
        yield block


def _report(block: list[str]) -> _Report | None:
    """A report that says something of the program; None for the tool's greeting and summaries."""
    first = block[0]
    for pattern, kind in _KINDS:
        if match := pattern.search(first):
            kernel, place = _place(block)
            hazards = next((_whole(found[1]) for line in block if (found := _HAZARDS.search(line))), 1)
            size = _BYTES.search(first)
            return _Report(
                match.expand(kind),
                "warning" if _WARNING.match(first) else "error",
                kernel,
                place,
                "; ".join(line for line in block if "Host Frame" not in line and "Saved host" not in line)[:400],
                hazards,
                _whole(size[1]) if size else None,
            )
    return None


def _place(block: list[str]) -> tuple[str | None, str | None]:
    for line in block:
        for pattern in _PLACES:
            if found := pattern.search(line):
                return found["kernel"].strip(), found.groupdict().get("place")
    return None, None


def _whole(text: str) -> int:
    return int(text.replace(",", ""))
