"""A log of every step of the simulated engine: the truth against which a client's figures can be held."""

from __future__ import annotations

from pathlib import Path

from servebench.clock import Anchor
from servebench.engine.sim.scheduler import Step

ANCHOR_EVERY_S = 1.0


class StepLog:
    """Writes one JSON line a step: `start_ns`, `end_ns`, `prefill_tokens`, `decode_sequences`, `waiting`.

    Instants are CLOCK_REALTIME, of the step as the engine planned it; `waiting` are the requests that had arrived and
    were not in the batch when it ended. Each line is there as soon as its step is over.

    Args:
        path: the file; replaced.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).open("w", buffering=1, encoding="ascii")  # noqa: SIM115  closed by `close`
        self._anchored = float("-inf")
        self._ahead = 0

    def add(self, step: Step, start: float, end: float, waiting: int) -> None:
        """Write a step that lasted from `start` to `end`, seconds of CLOCK_MONOTONIC."""
        if end - self._anchored > ANCHOR_EVERY_S:
            anchor = Anchor.now()
            self._anchored, self._ahead = end, anchor.realtime_ns - anchor.monotonic_ns
        self._file.write(
            f'{{"start_ns":{round(start * 1e9) + self._ahead},"end_ns":{round(end * 1e9) + self._ahead},'
            f'"prefill_tokens":{step.prefill_tokens},"decode_sequences":{step.decode_sequences},"waiting":{waiting}}}\n'
        )

    def close(self) -> None:
        """Write what is left."""
        self._file.close()
