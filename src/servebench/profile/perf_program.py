"""The program `perf`: where it is, which version, and what it says when something does not work."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from servebench.errors import UsageError

# Ubuntu's /usr/bin/perf only looks for a perf of the running kernel's version; others that lie around do as well.
PLACES = ("usr/bin/perf_*", "usr/lib/linux-tools/*/perf", "usr/lib/linux-tools-*/perf", "usr/local/bin/perf")
INSTALL = (
    "install it: package linux-perf on Debian, linux-tools-generic on Ubuntu, perf elsewhere; or scripts/install-perf"
)
GONE = "the processes are gone"
SECONDS = 20.0


def find_perf(root: Path = Path("/")) -> str:
    """Return the path of a perf that works. Raises UsageError with what to install."""
    on_path = shutil.which("perf")
    others = sorted((str(path) for place in PLACES for path in root.glob(place)), reverse=True)
    tried = []
    for program in ([on_path] if on_path else []) + others:
        if os.access(program, os.X_OK) and _version(program) is not None:
            return program
        tried.append(program)
    if tried:
        raise UsageError(f"{tried[0]} is there but does not run (none for this kernel?); {INSTALL}")
    raise UsageError(f"there is no perf on this machine; {INSTALL}")


def perf_version(program: str) -> str:
    """Return its version, such as `6.1.192`. Raises UsageError if it does not run."""
    version = _version(program)
    if version is None:
        raise UsageError(f"{program} does not run; {INSTALL}")
    return version


def environment() -> dict[str, str]:
    """What perf is run with: numbers and messages in one form, no configuration of the user's, no search by network."""
    return {**os.environ, "LC_ALL": "C", "PERF_CONFIG": os.devnull, "DEBUGINFOD_URLS": ""}


def refusal(output: str) -> str:
    """Return in one line why perf could not record, from what it printed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    text = " ".join(lines)
    if "perf_event_paranoid" in text or "No permission" in text or "Permission denied" in text or "EPERM" in text:
        return f"not permitted to record; {_permission()}"
    if "perf_event_max_sample_rate" in text or "Maximum frequency rate" in text:
        return f"the kernel refuses that frequency: {lines[0]}"
    if "Captured and wrote" in text:  # by itself, and in order
        return "the server's processes have ended"
    if "No such process" in text or "Problems finding threads" in text or "Couldn't create thread/CPU maps" in text:
        return GONE
    if "Too many events" in text or "Too many open files" in text:
        return "the server has too many threads for the limit of open files (ulimit -n)"
    if "No space left" in text:
        return "the disk is full"
    return next((line for line in lines if _tells(line)), "perf gave no reason")


def _permission() -> str:
    level = Path("/proc/sys/kernel/perf_event_paranoid")
    stands = f" (it is {level.read_text().strip()})" if level.exists() else ""
    return (
        f"be root or the server's user, with kernel.perf_event_paranoid at 2 or lower{stands}; "
        "in a container, allow perf_event_open (CAP_PERFMON)"
    )


def _tells(line: str) -> bool:
    """Whether a line of perf's output may be a reason, rather than its progress or usage."""
    return (
        not line.lower().startswith(("events ", "[ perf record", "usage:", "warning", "-", "error:")) and len(line) > 8
    )


def _version(program: str) -> str | None:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = done.stdout.removeprefix("perf version").strip()
    return text if done.returncode == 0 and text else None
