"""The machine that the client runs on: everything a reader needs to judge a figure, and nothing that names a person."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from servebench.record.health import Health, ProcessHealth
from servebench.telemetry.cgroup import Cgroup
from servebench.telemetry.files import Absent, find, text

__all__ = ["Health", "ProcessHealth", "environment"]

PACKAGES = (
    "servebench",
    "asyncio-throttle",
    "click",
    "hdrhistogram",
    "httptools",
    "httpx",
    "msgspec",
    "numpy",
    "nvidia-ml-py",
    "prometheus_client",
    "pyarrow",
    "pydantic",
    "PyYAML",
    "rich",
    "scipy",
    "uvloop",
)

_ROOT = Path("/")
_GIT_TIMEOUT_S = 2.0

Readers = dict[str, Callable[[], Any]]


def environment(repository: Path | None = None, root: Path = _ROOT) -> dict[str, Any]:
    """Describe this machine and this Python.

    Args:
        repository: a folder whose git revision belongs into the description.
        root: where /proc, /sys and /etc hang; another one in tests.

    Returns:
        a JSON-able mapping of mappings; a value that is not to be had is None, and `absent` maps its dotted name to
        the reason. There are no host, user or folder names in it.
    """
    groups: dict[str, Readers] = {
        "cpu": _cpu(root),
        "memory": {
            "total_bytes": lambda: _meminfo(root, "MemTotal"),
            "free_bytes": lambda: _meminfo(root, "MemAvailable"),
        },
        "cgroup": _cgroup(Cgroup(root)),
        "system": _system(root),
        "limits": _limits(),
        "clock": _clock(root),
        "python": _python(),
        "git": {"revision": lambda: _revision(repository), "modified": lambda: _modified(repository)},
    }
    absent: dict[str, str] = {}
    result: dict[str, Any] = {
        group: {name: _value(f"{group}.{name}", read, absent) for name, read in readers.items()}
        for group, readers in groups.items()
    }
    result["packages"] = {name: _value(f"packages.{name}", _version_of(name), absent) for name in PACKAGES}
    return result | {"absent": absent}


def _value(name: str, read: Callable[[], Any], absent: dict[str, str]) -> Any:
    try:
        return read()
    except Absent as reason:
        absent[name] = str(reason)
        return None


def _cpu(root: Path) -> Readers:
    cpufreq = root / "sys/devices/system/cpu/cpu0/cpufreq"
    return {
        "model": lambda: find(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", root / "proc/cpuinfo"),
        "architecture": platform.machine,
        "logical": os.cpu_count,
        "usable": _usable_cpus,
        "governor": lambda: text(cpufreq / "scaling_governor"),
        "max_mhz": lambda: int(text(cpufreq / "cpuinfo_max_freq")) / 1000,
        "load_1m": lambda: round(os.getloadavg()[0], 2),
    }


def _usable_cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        raise Absent("this system has no processor affinity") from None


def _meminfo(root: Path, name: str) -> int:
    return int(find(rf"^{name}:\s*(\d+) kB$", root / "proc/meminfo")) * 1024


def _cgroup(cgroup: Cgroup) -> Readers:
    return {
        "version": lambda: cgroup.version,
        "cpu_cores": lambda: cgroup.cpu_cores,
        "memory_bytes": lambda: cgroup.memory_bytes,
    }


def _system(root: Path) -> Readers:
    return {
        "kernel": lambda: f"{platform.system()} {platform.release()}",
        "distribution": lambda: find(r'^PRETTY_NAME="?([^"\n]+)"?$', root / "etc/os-release"),
        "libc": lambda: " ".join(platform.libc_ver()).strip() or _absent("the C library does not say"),
        "container": lambda: _container(root),
        "hypervisor": lambda: _hypervisor(root),
        "product": lambda: text(root / "sys/class/dmi/id/product_name"),
    }


def _container(root: Path) -> str:
    """Which container manager left its mark."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    raise Absent("no mark of a container")


def _hypervisor(root: Path) -> bool:
    """True where the processor says that it is a virtual one; only x86 does."""
    return "hypervisor" in find(r"^flags\s*:\s*(.+)$", root / "proc/cpuinfo").split()


def _limits() -> Readers:
    def of(which: int) -> Callable[[], int]:
        return lambda: _limit(resource.getrlimit(resource.RLIMIT_NOFILE)[which])

    return {"fds_soft": of(0), "fds_hard": of(1)}


def _limit(value: int) -> int:
    return value if value != resource.RLIM_INFINITY else _absent("unlimited")


def _clock(root: Path) -> Readers:
    return {
        "source": lambda: text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "realtime_resolution_ns": lambda: round(time.get_clock_info("time").resolution * 1e9),
        "monotonic_resolution_ns": lambda: round(time.get_clock_info("monotonic").resolution * 1e9),
    }


def _python() -> Readers:
    return {
        "version": platform.python_version,
        "implementation": platform.python_implementation,
        "compiler": platform.python_compiler,
        "gil": lambda: getattr(sys, "_is_gil_enabled", lambda: True)(),
    }


def _version_of(package: str) -> Callable[[], str]:
    def read() -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            raise Absent("not installed") from None

    return read


def _revision(repository: Path | None) -> str:
    return _git(repository, "rev-parse", "HEAD")


def _modified(repository: Path | None) -> bool:
    return bool(_git(repository, "status", "--porcelain", "--untracked-files=no"))


def _git(repository: Path | None, *arguments: str) -> str:
    """What git says; its own messages hold folder names and are not passed on."""
    if repository is None:
        raise Absent("no repository was asked for")
    command = ["git", "--no-optional-locks", "-C", str(repository), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True)
    except FileNotFoundError:
        raise Absent("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise Absent(f"git took more than {_GIT_TIMEOUT_S:.0f} s") from None
    except subprocess.CalledProcessError:
        raise Absent("not in a git repository with a commit, or git refuses to read it") from None
    return done.stdout.strip()


def _absent(reason: str) -> Any:
    raise Absent(reason)
