"""What a profiler is to a run: is it there, how a server is launched for it, start, stop, and what it leaves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from servebench.errors import ServebenchError, UsageError, did_you_mean

if TYPE_CHECKING:
    from servebench.profile.server import Server

Scalar = str | int | float | bool | None
FOLDER = "profile"  # of a run directory: one folder a window
WINDOW, WINDOW_SCHEMA = "window.json", 1
TIMELINE = "timeline.parquet"  # in a window's folder, beside what the tool itself wrote
STACKS = "stacks.folded"
FLAME_GRAPH = "flame.svg"


class ProfileError(ServebenchError):
    """A capture failed: the window says why, the run goes on."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server must be launched so that a tool can capture it.

    Attributes:
        prefix: put before the server's command.
        flags: of vLLM, without the dashes; the scenario's own win.
        env: environment variables.
        after_exit: whether reports exist only once the server has ended.
    """

    prefix: tuple[str, ...] = ()
    flags: Mapping[str, Scalar] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    after_exit: bool = False


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a window ends: after so many engine steps where the tool can count them; after `seconds` at the latest."""

    seconds: float = 5.0
    steps: int | None = None


class Tool(ABC):
    """One profiler for one run. Methods raise `ProfileError` when a capture fails; they never hang beyond their limit.

    Attributes:
        name: on the command line.
        options: the keys that `--profile-option KEY=VALUE` may set, each with its meaning.
        windows, bounds: what is captured when the user does not say.
        folder: of the run's `profile/`, for what belongs to no single window.
    """

    name: ClassVar[str]
    options: ClassVar[Mapping[str, str]] = {}
    windows: ClassVar[tuple[str, ...]] = ("prefill", "decode", "mixed")
    bounds: ClassVar[Bounds] = Bounds()

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        for key in settings:
            if key not in self.options:
                known = f"{', '.join(self.options)}" if self.options else "none"
                raise UsageError(f"--profile-option {key}: {self.name} knows {known}{did_you_mean(key, self.options)}")
        self.folder = folder
        self.settings = dict(settings)

    @abstractmethod
    def check(self) -> str:
        """Return the tool's version. Raises UsageError with what is missing and what to do about it."""

    def launch(self) -> Launch:
        """How a server that is started for the run must be launched."""
        return Launch()

    @abstractmethod
    def attach(self, server: Server) -> None:
        """Make sure that this running server can be captured. Raises ProfileError with what it would need."""

    @abstractmethod
    def start(self, window: str, folder: Path, bounds: Bounds) -> None:
        """Begin to capture into `folder`; returns once capturing has begun."""

    @abstractmethod
    def stop(self) -> None:
        """End the capture that `start` began; returns when the tool says that it is stored, or will be at the end."""

    def close(self) -> None:  # noqa: B027 - most tools have nothing to do here
        """The server has ended, or is left to its owner: leave nothing behind that only mattered while it ran."""

    @abstractmethod
    def collect(self, folder: Path) -> dict[str, Any]:
        """Turn what lies in a window's folder into `TIMELINE` (or `STACKS` and `FLAME_GRAPH`), once it is complete.

        Called after the load, and after the server's end for a tool whose `Launch.after_exit` is true.

        Returns:
            facts for window.json: at least {"files": [names], "tool": str, "version": str}; JSON values only.

        Raises:
            ProfileError: nothing usable was captured, with the reason.
        """
