"""What an exporter is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from servebench.record.rundir import RunDir


@runtime_checkable
class Exporter(Protocol):
    """One format. A package adds its own by an entry point of the group ``servebench.exporters``.

    Attributes:
        name: of the format, as it is given on the command line.
        help: what it writes, in a line.
    """

    @property
    def name(self) -> str: ...
    @property
    def help(self) -> str: ...

    def write(self, run: RunDir, summary: dict[str, Any], out: Path) -> list[Path]:
        """Write `run` in this format.

        Args:
            run: finished or not; it is only read.
            summary: its figures, as summary.json holds them.
            out: the file, or the folder, to be made; nothing is there yet. The caller moves it to where the user wants
                it once it is whole.

        Returns:
            the files that were written.

        Raises:
            OSError: as writing does.
            UsageError: the run has nothing that this format could hold.
        """
        ...
