"""When requests are sent: arrival laws, stages, the closed loop, and the limits of the run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import model_serializer, model_validator

from servebench.scenario.strict import (
    Count,
    Duration,
    PositiveDuration,
    Strict,
    check_keys,
    convert,
    parse_number,
    parse_positive_duration,
    parse_positive_rate,
    problem,
    require_mapping,
)
from servebench.units import parse_duration, parse_quota, parse_rate

STAGE_LAWS = ("poisson", "constant", "gamma", "ramp")
OPEN_LAWS = (*STAGE_LAWS, "stages")
LOAD_LAWS = (*OPEN_LAWS, "closed")
DEFAULT_DURATION = 60.0


class Stage(Strict):
    """A stretch of an open loop under one law.

    Attributes:
        law: ``poisson``, ``constant``, ``gamma`` (gaps of a given CV) or ``ramp`` (poisson, from `rate` to `rate_end`).
        rate: per second; of a ramp, at its start.
        cv: of the gaps, for ``gamma``; 1 for ``poisson`` and ``ramp``, 0 for ``constant``.
        rate_end: per second, at the end of a ramp.
        duration: in seconds; None for as long as the load lasts.
    """

    accepts: ClassVar[tuple[str, ...]] = (*STAGE_LAWS, "for")
    law: Literal["poisson", "constant", "gamma", "ramp"]
    rate: float
    cv: float
    rate_end: float | None = None
    duration: float | None = None

    @classmethod
    def shape(cls, data: Any, base: Path) -> Any:
        """Read ``{poisson: 4/s, for: 30s}`` and the like."""
        if not isinstance(data, dict):
            return data
        laws = [key for key in data if key in STAGE_LAWS]
        if len(laws) != 1:
            raise problem(f"a stage takes exactly one of {', '.join(STAGE_LAWS)}", *laws[1:2])
        fields = _law_fields(laws[0], data[laws[0]])
        if data.get("for") is not None:
            fields["duration"] = convert(parse_positive_duration, data["for"], "for")
        return fields

    @model_serializer
    def written(self) -> dict[str, Any]:
        """The stage as it would be written, rates per second as bare numbers."""
        laws: dict[str, Any] = {
            "poisson": self.rate,
            "constant": self.rate,
            "gamma": {"rate": self.rate, "cv": self.cv},
            "ramp": {"from": self.rate, "to": self.rate_end},
        }
        stage: dict[str, Any] = {self.law: laws[self.law]}
        return stage if self.duration is None else {**stage, "for": self.duration}

    @property
    def mean_rate(self) -> float:
        """Per second, over the stage."""
        return self.rate if self.rate_end is None else (self.rate + self.rate_end) / 2

    @property
    def last_rate(self) -> float:
        """Per second, at the end of the stage."""
        return self.rate if self.rate_end is None else self.rate_end


def _law_fields(law: str, value: object) -> dict[str, Any]:
    """Fields of a `Stage` from ``law: value``; errors point below the law's key."""
    if law == "gamma":
        given = require_mapping(value, "a mapping with rate and cv", law)
        check_keys(given, ("rate", "cv"), law)
        _need(given, ("rate", "cv"), law)
        cv = convert(parse_number, given["cv"], law, "cv")
        if not 0 < cv <= 100:
            raise problem(f"expected a cv above 0 and up to 100, not {cv:g}", law, "cv")
        return {"law": law, "rate": convert(parse_positive_rate, given["rate"], law, "rate"), "cv": cv}
    if law == "ramp":
        given = require_mapping(value, "a mapping with from and to", law)
        check_keys(given, ("from", "to"), law)
        _need(given, ("from", "to"), law)
        start, end = (convert(parse_rate, given[key], law, key) for key in ("from", "to"))
        if start == end == 0:
            raise problem("a ramp needs a rate above 0 at one of its ends", law)
        return {"law": law, "rate": start, "rate_end": end, "cv": 1.0}
    return {"law": law, "rate": convert(parse_positive_rate, value, law), "cv": 1.0 if law == "poisson" else 0.0}


def _need(given: dict[str, Any], keys: tuple[str, ...], *at: str) -> None:
    for key in keys:
        if key not in given:
            raise problem(f'"{key}" is missing', *at)


class Closed(Strict):
    """A closed loop: `concurrency` slots, each sending its next request `think` seconds after its last one ended."""

    concurrency: Count
    think: Duration = 0.0


class MaxInFlight(Strict):
    """A cap on the open loop's requests in flight; written as a bare number, it makes the others wait.

    Attributes:
        limit: requests in flight.
        policy: ``wait`` for a slot, its latency counting from its due time, or ``drop`` what comes while all are taken.
    """

    limit: Count
    policy: Literal["wait", "drop"] = "wait"

    @classmethod
    def shape(cls, data: Any, base: Path) -> Any:
        """Accept the bare number."""
        return {"limit": data} if isinstance(data, (int, str)) and not isinstance(data, bool) else data


class Throttle(Strict):
    """At most `limit` requests in each `period` seconds, for endpoints that limit their clients; ``600/min``."""

    accepts: ClassVar[tuple[str, ...]] = ("limit", "period")
    limit: Count
    period: PositiveDuration

    @classmethod
    def shape(cls, data: Any, base: Path) -> Any:
        """Read ``600/min``."""
        if isinstance(data, dict):
            return data
        quota = convert(parse_quota, data)
        return {"limit": quota.amount, "period": quota.period}

    @property
    def rate(self) -> float:
        """Per second."""
        return self.limit / self.period


class Load(Strict):
    """The load of a run. Exactly one of `closed` and `stages` is set, and exactly one of `duration` and `requests`.

    Attributes:
        stages: of an open loop, in order; the last one may last as long as the load does.
        closed: a closed loop.
        duration: of the measured window, seconds.
        requests: how many in all, warm-up included, instead of a duration.
        warmup: seconds before the measured window, or ``auto``: found afterwards in what was measured.
        drain: seconds that requests in flight may still take after the measured window.
        max_in_flight: cap of an open loop.
        throttle: client-side request cap.
    """

    accepts: ClassVar[tuple[str, ...]] = (
        *LOAD_LAWS,
        "duration",
        "requests",
        "warmup",
        "drain",
        "max_in_flight",
        "throttle",
    )
    stages: tuple[Stage, ...] = ()
    closed: Closed | None = None
    duration: PositiveDuration | None = None
    requests: Count | None = None
    warmup: float | Literal["auto"] = 0.0
    drain: Duration = 60.0
    max_in_flight: MaxInFlight | None = None
    throttle: Throttle | None = None

    @classmethod
    def shape(cls, data: Any, base: Path) -> Any:
        """Make a lone open law the only stage, and fill in the duration."""
        if not isinstance(data, dict):
            return data
        laws = [key for key in LOAD_LAWS if data.get(key) is not None]
        if len(laws) != 1:
            raise problem(f"a load takes exactly one of {', '.join(LOAD_LAWS)}" + _both(laws), *laws[1:2])
        fields = {key: value for key, value in data.items() if key not in STAGE_LAWS and value is not None}
        if laws[0] in STAGE_LAWS:
            fields["stages"] = [{laws[0]: data[laws[0]]}]
        if fields.get("warmup", "auto") != "auto":
            fields["warmup"] = convert(parse_duration, fields["warmup"], "warmup")
        if "duration" in fields and "requests" in fields:
            raise problem("a load takes either duration or requests", "requests")
        return fields

    @model_validator(mode="after")
    def _consistent(self) -> Load:
        if self.closed and self.max_in_flight:
            raise problem("max_in_flight caps an open loop; a closed one has its concurrency", "max_in_flight")
        if not self.closed and not self.stages:
            raise problem("expected at least one stage", "stages")
        for index, stage in enumerate(self.stages[:-1]):
            if stage.duration is None:
                raise problem('"for" is missing: only the last stage may leave it out', "stages", index)
        if self.requests is not None:
            self._check_requests()
        else:
            object.__setattr__(self, "duration", self._full_duration())
        return self

    def _check_requests(self) -> None:
        last = self.stages[-1] if self.stages else None
        if last and last.law == "ramp" and last.duration is None:
            raise problem("a ramp needs its length: give duration instead of requests, or stages with for", "requests")
        if last and last.duration is not None and last.last_rate == 0:
            raise problem("stages that end at a rate of 0 cannot reach a number of requests; give duration", "requests")

    def _full_duration(self) -> float:
        """The measured window: as given, or as long as the stages, or the default."""
        lengths = [stage.duration for stage in self.stages if stage.duration is not None]
        open_ended = len(lengths) < len(self.stages)
        total = math.fsum(lengths)
        if self.stages and not open_ended:
            if self.duration is not None and not math.isclose(self.duration, total):
                raise problem(f"the stages last {total:g} s, the duration says {self.duration:g} s", "duration")
            return total
        if self.duration is not None and self.duration <= total:
            raise problem(f"the last stage never starts: those before it last {total:g} s", "duration")
        return self.duration if self.duration is not None else total + DEFAULT_DURATION

    @model_serializer
    def written(self) -> dict[str, Any]:
        """The load as it would be written, times in seconds."""
        written: dict[str, Any] = {}
        if self.closed:
            written["closed"] = self.closed.model_dump()
        elif len(self.stages) == 1 and self.stages[0].duration is None:
            written.update(self.stages[0].written())
        else:
            written["stages"] = [stage.written() for stage in self.stages]
        for key in ("duration", "requests", "warmup", "drain"):
            if getattr(self, key) is not None:
                written[key] = getattr(self, key)
        for key in ("max_in_flight", "throttle"):
            if getattr(self, key) is not None:
                written[key] = getattr(self, key).model_dump()
        return written

    @property
    def warmup_s(self) -> float:
        """Seconds of the plan before the measured window; 0 when it is found afterwards (``auto``)."""
        return 0.0 if self.warmup == "auto" else float(self.warmup)


def _both(laws: list[str]) -> str:
    return f", not {' and '.join(laws)}" if laws else ""
