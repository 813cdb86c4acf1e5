"""Compute Sanitizer: whether the engine's kernels touch memory that is not theirs, or race with themselves."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from servebench.errors import UsageError, did_you_mean
from servebench.profile.tool import Bounds, Launch, ProfileError, Tool
from servebench.profile.tools.cuda_program import CudaProgram, around

if TYPE_CHECKING:
    from servebench.profile.server import Server

SANITIZER = CudaProgram(
    "compute-sanitizer",
    "Compute Sanitizer",
    ("/usr/local/cuda*/bin/compute-sanitizer", "/usr/local/cuda*/compute-sanitizer/compute-sanitizer"),
)
CHECKS = ("memcheck", "racecheck", "initcheck", "synccheck")
ERROR_EXIT = 86
MOST_PRINTED = 1000


class SanitizerTool(Tool):
    """Launches the server under compute-sanitizer, from its start to its end; a window's load is the smoke test.

    All times of such a run are meaningless: a checked kernel takes ten to a hundred times as long. Accesses
    beyond a tensor are not found where they stay in the block of torch's allocator that holds it.
    """

    name = "sanitizer"
    options: ClassVar[Mapping[str, str]] = {
        "checks": f"one of {', '.join(CHECKS)}: a server runs under one at a time; memcheck by default",
        "leaks": "yes also reports device memory that was not freed at the end; no by default",
        "kernels": "checks only kernels whose names contain this, which is much faster",
    }
    windows: ClassVar[tuple[str, ...]] = ("mixed",)
    bounds: ClassVar[Bounds] = Bounds(seconds=60.0)

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, settings)
        self._check = _check(settings.get("checks", CHECKS[0]))
        self._leaks = _leaks(settings.get("leaks", "no"), self._check)

    def check(self) -> str:
        return SANITIZER.version(SANITIZER.find())

    def launch(self) -> Launch:
        self.folder.mkdir(parents=True, exist_ok=True)
        return Launch(
            prefix=around(SANITIZER.find(), self.arguments(), self._pid_file),
            env={"VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
            after_exit=True,
        )

    def arguments(self) -> tuple[str, ...]:
        """Arguments of compute-sanitizer, before the server's command."""
        of_check = ("--report-api-errors", "no") if self._check == "memcheck" else ()  # the engine handles those
        leaks = ("--leak-check", "full") if self._leaks else ()
        kernels = (
            ("--kernel-name", f"kernel_substring={self.settings['kernels']}") if "kernels" in self.settings else ()
        )
        return (
            *("--tool", self._check),
            *of_check,
            *leaks,
            *kernels,
            *("--target-processes", "all"),
            *("--launch-timeout", "0"),  # Python takes its time to its first call of CUDA
            *("--require-cuda-init", "no", "--check-exit-code", "no"),  # of helpers, and of a server that was ended
            *("--error-exitcode", str(ERROR_EXIT)),
            *("--print-limit", str(MOST_PRINTED)),
            *("--log-file", str(self._log.resolve()).replace("%", "%%")),
        )

    @property
    def _log(self) -> Path:
        return self.folder / f"sanitizer-{self._check}.log"

    @property
    def _pid_file(self) -> Path:
        return self.folder / "sanitizer-server.pid"

    def attach(self, server: Server) -> None:
        if not server.ours:
            raise ProfileError(
                "compute-sanitizer cannot attach to a running server: let servebench launch it (no --endpoint)"
            )

    def start(self, window: str, folder: Path, bounds: Bounds) -> None:
        """Nothing: all that the server does is checked."""

    def stop(self) -> None:
        """Nothing: the log is complete when the server has ended."""

    def close(self) -> None:
        self._pid_file.unlink(missing_ok=True)

    def collect(self, folder: Path) -> dict[str, Any]:
        from servebench.profile.readers.sanitizer_log import read_sanitizer

        if not self._log.is_file():
            raise ProfileError(f"compute-sanitizer has written no {self._log}: see the server's log")
        result = read_sanitizer(self._log)
        shutil.copy(self._log, folder / self._log.name)
        return {
            "files": [self._log.name],
            "tool": self.name,
            "version": self.check(),
            "sanitizer": {"check": self._check, **result},
            "notes": ["kernels were checked: no time of this run says anything of the server's speed"],
        }


def _check(text: str) -> str:
    if text in CHECKS:
        return text
    if set(text.split(",")) <= set(CHECKS):
        raise UsageError(f"--profile-option checks={text}: a server runs under one check at a time; run once for each")
    raise UsageError(f"--profile-option checks={text}: one of {', '.join(CHECKS)}{did_you_mean(text, CHECKS)}")


def _leaks(text: str, check: str) -> bool:
    if text not in ("yes", "no"):
        raise UsageError(f"--profile-option leaks={text}: yes or no")
    if text == "yes" and check != "memcheck":
        raise UsageError("--profile-option leaks=yes: only memcheck looks for leaks")
    return text == "yes"
