"""One way to deploy a model, as its capacity was measured: what a replica carries, on what, with which reservations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from servebench.errors import UsageError
from servebench.experiment.directory import ExperimentDir

PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
NO_ENERGY = "the capacity run measured no energy (no GPU that the server used was sampled)"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A capacity result as a plan reads it. Rates are requests per second of one replica.

    Attributes:
        name: the experiment's folder.
        path: of the experiment, as it was given.
        sustained: the highest rate that passed; None when none did.
        failed: the lowest rate that failed; None when none did.
        goodput: good requests per second at the sustained rate.
        binding: the objective that broke first, in words.
        input_tokens, output_tokens: mean of a request.
        energy: J for an output token at the sustained rate; None with `no_energy`, the reason.
        engine: name, version, model, flags, GPUs.
        gpus: of one replica by the engine's own flags or GPUs; None when neither says.
        gpus_from: which of them said it.
        marks: SIMULATED, NOT CONFIRMED, SUSPECT, ... and what else must stand beside every figure.
        doubts: the warnings and failures of its verdict, a sentence each.
        asked: the SLO and the workload of the test; two deployments compare only when these are equal.
    """

    name: str
    path: str
    sustained: float | None
    failed: float | None
    goodput: float | None
    binding: str | None
    input_tokens: float | None
    output_tokens: float | None
    energy: float | None
    no_energy: str | None
    engine: Mapping[str, Any]
    gpus: int | None
    gpus_from: str
    marks: tuple[str, ...]
    doubts: tuple[str, ...]
    asked: Mapping[str, Any]

    @property
    def total_tokens(self) -> float | None:
        """Mean tokens of a request, prompt and answer together."""
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens + self.output_tokens


def read_deployment(path: Path) -> Deployment:
    """The deployment whose capacity was measured in the experiment at `path`.

    Raises:
        UsageError: there is no experiment, it is of another kind, or it has no result yet.
    """
    document = ExperimentDir.open(path).document
    kind = document.get("kind")
    if kind != "capacity":
        raise UsageError(f'{path} is an experiment of the kind "{kind}"; a plan needs those of `servebench capacity`')
    if not document.get("result"):
        raise UsageError(f"{path} has no result yet; run its `servebench capacity` again, it goes on where it stopped")
    return of_document(document, path)


def of_document(document: Mapping[str, Any], path: Path) -> Deployment:
    """The deployment of an experiment.json's content."""
    result = document["result"]
    tokens = result.get("tokens") or {}
    engine = result.get("engine") or {}
    energy = result.get("energy_j_per_output_token")
    gpus, gpus_from = _gpus(engine)
    return Deployment(
        name=path.resolve().name,
        path=str(path),
        sustained=result.get("sustained_per_s") or None,
        failed=result.get("failed_per_s"),
        goodput=result.get("goodput_per_s"),
        binding=(result.get("binding") or {}).get("text"),
        input_tokens=tokens.get("input_mean"),
        output_tokens=tokens.get("output_mean"),
        energy=energy,
        no_energy=None if energy is not None else result.get("energy_reason") or NO_ENERGY,
        engine=engine,
        gpus=gpus,
        gpus_from=gpus_from,
        marks=_marks(result, document),
        doubts=_doubts(result.get("verdict") or {}),
        asked=_asked(document.get("question") or {}, result),
    )


def _gpus(engine: Mapping[str, Any]) -> tuple[int | None, str]:
    """GPUs of one replica, and what says so."""
    flags = engine.get("flags") or {}
    set_here = {name: int(flags[name]) for name in PARALLEL if flags.get(name)}
    if set_here:
        return prod(set_here.values()), " × ".join(f"{name} {n}" for name, n in set_here.items())
    if engine.get("gpus"):
        return int(engine["gpus"]), "the GPUs that the server used in the capacity test"
    return None, "nothing says how many GPUs a replica has"


def _marks(result: Mapping[str, Any], document: Mapping[str, Any]) -> tuple[str, ...]:
    status = (result.get("verdict") or {}).get("status")
    marks = {
        "SIMULATED": result.get("simulated") or document.get("simulated"),
        "RANDOM WEIGHTS": result.get("random_weights"),
        "NOT CONFIRMED": not result.get("confirmed"),
        "BRACKET OPEN ABOVE": result.get("failed_per_s") is None,
        str(status): status in ("SUSPECT", "INVALID"),
    }
    return tuple(name for name, holds in marks.items() if holds)


def _doubts(verdict: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(code["text"] for code in verdict.get("codes") or [] if code["level"] != "ok")


def _asked(question: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a capacity question that must be equal for two answers to be about the same thing."""
    scenario = question.get("scenario") or {}
    objectives = [[objective["text"], objective["target"]] for objective in result.get("slo") or []]
    return {"SLO": objectives or scenario.get("slo"), "workload": scenario.get("workload")}
