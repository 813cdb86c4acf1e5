"""What vLLM's log says about its end, in words for a person."""

from __future__ import annotations

import re
from pathlib import Path

from servebench.errors import did_you_mean

LINE_LIMIT = 240
LOOK_BACK_BYTES = 262_144
COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
PREFIX = r"(?:\([\w-]+ pid=\d+\) )?(?:ERROR \S+ \S+ \[[^\]]*\] )?"
EXCEPTION = re.compile(rf"{PREFIX}((?:\w+\.)*\w*(?:Error|Exception|Exit): .+)")
CONSEQUENCE = "Engine core initialization failed"  # what the front end says when the engine has said the cause
REFUSAL = re.compile(r"^\S+: error: (.+)$", re.MULTILINE)
UNKNOWN = "unrecognized arguments: "


def read_log(path: Path) -> str:
    """Return the last part of the log without colours; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - LOOK_BACK_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return COLOUR.sub("", text.replace("\r", "\n"))


def last_lines(text: str, count: int) -> list[str]:
    """Return the last `count` lines that say something, cut to a readable width."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return [line if len(line) <= LINE_LIMIT else f"{line[:LINE_LIMIT]}…" for line in lines[-count:]]


def explain_death(text: str, path: Path, exit_code: int) -> str:
    """Say why vLLM ended: the flags that it refused, or the first exception and the last lines."""
    refusal = REFUSAL.search(text)
    if exit_code == 2 and refusal:
        return _explain_refusal(refusal[1], text)
    cause = first_cause(text)
    ended = f"exit code {exit_code}" if exit_code < 128 else f"signal {exit_code - 128}"
    head = f"vLLM ended ({ended})" + (f": {cause}" if cause else "")
    lines = last_lines(text, 12)
    return "\n    ".join([head, f"the last lines of {path}:", *lines]) if lines else f"{head}; {path} is empty"


def _explain_refusal(refusal: str, text: str) -> str:
    """Word argparse's complaint; an unknown flag comes with the nearest that this vLLM knows (its usage lists all)."""
    if not refusal.startswith(UNKNOWN):
        return f"vLLM refuses its flags: {refusal}"
    known = {name.rstrip(".") for name in re.findall(r"--([a-z][\w.-]*)", text.partition(UNKNOWN)[0])}
    unknown = [word.removeprefix("--").partition("=")[0] for word in refusal.removeprefix(UNKNOWN).split()]
    return "this vLLM has no flag " + ", ".join(f'"{name}"{did_you_mean(name, known)}' for name in unknown)


def first_cause(text: str) -> str | None:
    """Return the first exception in the log that is not a mere consequence of another."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        found = EXCEPTION.fullmatch(line.rstrip())
        if found and CONSEQUENCE not in line:
            following = lines[number + 1] if number + 1 < len(lines) else ""
            return _joined(found[1], re.sub(f"^{PREFIX}", "", following))
    return None


def _joined(exception: str, following: str) -> str:
    """Add the next line where the first only announces it, as in "1 validation error for VllmConfig"."""
    return f"{exception}: {following.strip()}" if re.search(r"validation errors? for \w+$", exception) else exception
