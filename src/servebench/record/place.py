"""The place of a run on the disk: made when it begins, and left without a trace when it comes to nothing."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from servebench.errors import ExitCode
from servebench.record.rundir import RunDir
from servebench.record.stream import JournalError

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)


def is_disk_error(error: BaseException) -> bool:
    """Whether the disk, rather than servebench or the server, is what failed."""
    return isinstance(error, JournalError) or (isinstance(error, OSError) and error.errno in DISK_ERRORS)


class Place:
    """Where the run directory is; knows what to remove of a run that has recorded nothing.

    Args:
        name: of the scenario.
        out: the run directory; None makes one below `results`.
        results: where run directories go by default.

    Attributes:
        path: the run directory; before `occupy` without `--out`, the folder for it.
    """

    def __init__(self, name: str, out: Path | None, results: Path) -> None:
        self._name = name
        self._out = out
        self.path = out or results
        self._new = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self._rundir: RunDir | None = None

    def occupy(self) -> RunDir:
        """Make the run directory, and begin the run in it."""
        if self._out is not None:
            self._rundir = RunDir.create(self._out)
        else:
            self._rundir = RunDir.create_under(self.path, self._name)
            self._new.insert(0, self._rundir.path)
        self.path = self._rundir.path
        return self._rundir

    def leave(self, error: BaseException) -> None:
        """After an error: keep what was recorded or what a server's log says, marked as failed; else leave no trace."""
        if self._rundir is not None and self._is_worth_keeping(self._rundir, error):
            self._rundir.manifest["status"] = "failed"
            try:
                self._rundir.save_manifest()
            except OSError:
                pass  # a full disk: what is there says "running", which reads as incomplete
        elif self._rundir is not None or self.path in self._new:
            self._remove()

    @staticmethod
    def _is_worth_keeping(rundir: RunDir, error: BaseException) -> bool:
        if rundir.requests().num_rows:
            return True
        log = rundir.log_path("server")
        stopped = isinstance(error, KeyboardInterrupt) or getattr(error, "exit_code", None) is ExitCode.INTERRUPTED
        return not stopped and log.exists() and log.stat().st_size > 0

    def _remove(self) -> None:
        """What the run has made, and nothing else, in a folder that was there before."""
        mine = [self.path] if self.path in self._new else [self.path / name for name in ("journal", "raw")]
        for folder in mine:
            shutil.rmtree(folder, ignore_errors=True)
        for pattern in (".run.json.new", "run.json", "plan.parquet", "*.log"):
            for file in self.path.glob(pattern):
                file.unlink()
        for folder in self._new:
            try:
                folder.rmdir()
            except OSError:
                continue  # already gone, or another has put something into it
