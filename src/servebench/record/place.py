"""The place of a run on the disk: made when it begins, and left without a trace when it comes to nothing."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from servebench.errors import ExitCode
from servebench.record.rundir import RunDir
from servebench.record.stream import JournalError

OURS = (".run.json.new", "run.json", "plan.parquet", "journal", "raw", "profile", "server.log", "worker-*.log")
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
        self._new_parents = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self._made = False
        self._before: set[str] = set()
        self._rundir: RunDir | None = None

    def occupy(self) -> RunDir:
        """Make the run directory, and begin the run in it."""
        if self._out is None:
            self._rundir = RunDir.create_under(self.path, self._name)
            self._made = True
        else:
            self._take(self._out)
            self._rundir = RunDir.create(self._out)
        self.path = self._rundir.path
        return self._rundir

    def _take(self, out: Path) -> None:
        """Make the directory, or remember what is in it: only what we have made may ever be removed."""
        try:
            out.mkdir(parents=True)
            self._made = True
        except OSError:
            self._before = {path.name for path in out.iterdir()} if out.is_dir() else set()

    def leave(self, error: BaseException) -> None:
        """After an error: keep what was recorded or what a server's log says, marked as failed; else leave no trace."""
        if self._rundir is not None and self._is_worth_keeping(self._rundir, error):
            self._rundir.manifest["status"] = "failed"
            try:
                self._rundir.save_manifest()
            except OSError:
                pass  # a full disk: what is there says "running", which reads as incomplete
        elif self._rundir is not None or self._made:
            self._remove()

    def _is_worth_keeping(self, rundir: RunDir, error: BaseException) -> bool:
        if rundir.requests().num_rows:
            return True
        log = rundir.log_path("server")
        if isinstance(error, KeyboardInterrupt) or getattr(error, "exit_code", None) is ExitCode.INTERRUPTED:
            return False
        return log.name not in self._before and log.exists() and log.stat().st_size > 0

    def _remove(self) -> None:
        """Remove the directory if it is ours; else what the run has put into it, and nothing that was there before."""
        if self._made:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            for pattern in OURS:
                for path in self.path.glob(pattern):
                    if path.name not in self._before:
                        _delete(path)
        for folder in self._new_parents:
            try:
                folder.rmdir()
            except OSError:
                continue  # already gone, or another has put something into it


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
