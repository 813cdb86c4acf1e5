"""The runs that every exporter is tried on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from servebench.analysis.summary import summarize
from servebench.record.columns import Outcome
from servebench.record.rundir import RunDir
from servebench.report.exports import find
from servebench.testing.synthetic import SyntheticRun, open_run

EXAMPLE = Path(__file__).parents[3] / "results" / "example-chat"


@dataclass(frozen=True)
class Finished:
    """A run with its figures, and how to export it."""

    run: RunDir
    summary: dict[str, Any]

    def write(self, name: str, out: Path) -> list[Path]:
        files = find(name).write(self.run, self.summary, out)
        assert all(file.is_file() for file in files)
        return files

    @property
    def metrics(self) -> dict[str, Any]:
        return self.summary["metrics"]


def finished(run: RunDir) -> Finished:
    return Finished(run, summarize(run))


@pytest.fixture(scope="session")
def example() -> Finished:
    """The committed run of a real vLLM."""
    return finished(RunDir.open(EXAMPLE))


def mixed_run() -> SyntheticRun:
    """Two tokens a chunk, two failures inside the measured window, a request that was never sent; simulated."""
    run = open_run(requests=200, warmup=1, cooldown=1, tokens_per_chunk=2, slo={"ttft": ["p95 < 10s"]})
    run.fail(60, Outcome.HTTP_ERROR, 'HTTP 500: "a|b", <b>*c*</b>', 500)
    run.fail(61, Outcome.DROPPED)
    run.fail(62, Outcome.TIMEOUT, "no byte for 60 s")
    run.manifest["simulated"] = True
    run.manifest["endpoint"] = {**(run.manifest.get("endpoint") or {}), "model": 'my|model "x" <y>'}
    return run


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run in which not everything went well."""
    return finished(mixed_run().write(tmp_path_factory.mktemp("mixed") / "run"))


@pytest.fixture
def failed(tmp_path: Path) -> Finished:
    """A run without any answer."""
    run = open_run(requests=20, warmup=0.1, cooldown=0.1)
    for index in range(20):
        run.fail(index, Outcome.CONNECT_ERROR, "refused")
    return finished(run.write(tmp_path / "failed"))


@pytest.fixture
def cut(tmp_path: Path) -> Finished:
    """A run that was killed: nothing but journals."""
    run = open_run(requests=100, warmup=1, cooldown=1)
    run.manifest["status"] = "running"
    run.manifest.pop("phases")
    run.manifest.pop("workers")
    return finished(run.write(tmp_path / "cut"))
