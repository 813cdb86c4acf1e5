"""The laws that prompt and answer lengths follow, as they are written; drawing from them is `workload.lengths`."""

from __future__ import annotations

import csv
import math
from abc import abstractmethod
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Discriminator, Field, PlainSerializer, Tag, field_validator, model_validator

from servebench.scenario.strict import Amount, Count, Number, PositiveNumber, Strict, check_keys, problem
from servebench.units import describe

MAX_TOKENS = 10_000_000
# A law of which less than this lies within its bounds is a mistake in the bounds, not a wish.
LEAST_MASS = 0.01


class Law(Strict):
    """A law of a length in tokens; every draw is a whole number from `lower` to `upper`."""

    name: ClassVar[str]

    @classmethod
    def unwrap(cls, data: Any) -> Any:
        """Take the parameters out of ``{law: parameters}``."""
        return data[cls.name] if isinstance(data, dict) and set(data) == {cls.name} else data

    @property
    @abstractmethod
    def lower(self) -> int:
        """The least length that can be drawn."""

    @property
    @abstractmethod
    def upper(self) -> int:
        """The greatest length that can be drawn."""

    def written(self) -> Any:
        """The law as ``{law: parameters}``, which reads back as this law."""
        return {self.name: self.model_dump(mode="json", exclude_none=True)}


class Fixed(Law):
    """Always the same length; written as a bare number."""

    name: ClassVar[str] = "fixed"
    tokens: Count

    @classmethod
    def shape(cls, data: Any, base: Path) -> Any:
        """Accept the bare number."""
        return data if isinstance(data, dict) else {"tokens": data}

    @property
    def lower(self) -> int:
        """The length."""
        return self.tokens

    upper = lower

    def written(self) -> Any:
        """A bare number."""
        return self.tokens


class Uniform(Law):
    """Every whole number from `min` to `max`, both included, equally often."""

    name: ClassVar[str] = "uniform"
    min: Count
    max: Count

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.max < self.min:
            raise problem(f"max {self.max} is below min {self.min}", "max")
        return self

    @property
    def lower(self) -> int:
        """`min`."""
        return self.min

    @property
    def upper(self) -> int:
        """`max`."""
        return self.max


class Truncated(Law):
    """A continuous law, rounded to whole numbers and drawn again until it lies from `min` to `max`.

    Its parameters are those of the law before the truncation.
    """

    min: Count = 1
    max: Count = MAX_TOKENS

    @abstractmethod
    def cdf(self, x: float) -> float:
        """Probability that the law, before rounding and truncation, is at most `x`."""

    @property
    def mass(self) -> float:
        """The share of the law, before truncation, that rounds into the bounds."""
        return self.cdf(self.max + 0.5) - self.cdf(self.min - 0.5)

    @abstractmethod
    def check_form(self) -> None:
        """Raise a problem unless exactly one set of parameters is given."""

    @model_validator(mode="after")
    def _reachable(self) -> Truncated:
        self.check_form()
        if self.max < self.min:
            raise problem(f"max {self.max} is below min {self.min}", "max")
        if self.mass < LEAST_MASS:
            share = f"{100 * self.mass:.2g} %"
            raise problem(
                f"only {share} of this {self.name} law lies from {self.min} to {self.max}; move its bounds or its mean"
            )
        return self

    @property
    def lower(self) -> int:
        """`min`."""
        return self.min

    @property
    def upper(self) -> int:
        """`max`."""
        return self.max


class Normal(Truncated):
    """Normal with `mean` and standard deviation `sd`, or `cv`, which is sd / mean."""

    name: ClassVar[str] = "normal"
    mean: Amount
    sd: Amount | None = None
    cv: PositiveNumber | None = None

    def check_form(self) -> None:
        """Mean, and either sd or cv."""
        if (self.sd is None) == (self.cv is None):
            raise problem("a normal law takes mean and either sd or cv")

    @property
    def dist(self) -> NormalDist:
        """The law before truncation."""
        return NormalDist(self.mean, self.sd if self.sd is not None else self.mean * (self.cv or 0.0))

    def cdf(self, x: float) -> float:
        """Normal distribution function."""
        return self.dist.cdf(x)


P95 = NormalDist().inv_cdf(0.95)


class Lognormal(Truncated):
    """Lognormal with `mean` and `cv`, or with `p50` and one of `p95` and `sigma` (of the logarithm)."""

    name: ClassVar[str] = "lognormal"
    mean: Amount | None = None
    cv: PositiveNumber | None = None
    p50: Amount | None = None
    p95: Amount | None = None
    sigma: PositiveNumber | None = None

    def check_form(self) -> None:
        """One of the three pairs."""
        given = {key for key in ("mean", "cv", "p50", "p95", "sigma") if getattr(self, key) is not None}
        if given not in ({"mean", "cv"}, {"p50", "p95"}, {"p50", "sigma"}):
            raise problem("a lognormal law takes mean and cv, or p50 and p95, or p50 and sigma")
        if self.p50 and self.p95 and self.p95 <= self.p50:
            raise problem(f"p95 {self.p95:g} must be above p50 {self.p50:g}", "p95")

    @property
    def log_dist(self) -> NormalDist:
        """The law of the logarithm: sigma² = ln(1 + cv²), mu = ln(mean) − sigma²/2."""
        if self.mean is not None and self.cv is not None:
            variance = math.log1p(self.cv**2)
            return NormalDist(math.log(self.mean) - variance / 2, math.sqrt(variance))
        p50 = self.p50 or 1.0
        sigma = self.sigma if self.sigma is not None else math.log((self.p95 or 1.0) / p50) / P95
        return NormalDist(math.log(p50), sigma)

    def cdf(self, x: float) -> float:
        """Lognormal distribution function."""
        return self.log_dist.cdf(math.log(x)) if x > 0 else 0.0


class Gamma(Truncated):
    """Gamma with `mean` and `cv`: shape 1/cv², scale mean·cv²."""

    name: ClassVar[str] = "gamma"
    mean: Amount
    cv: PositiveNumber

    def check_form(self) -> None:
        """Mean and cv are both required already."""

    def cdf(self, x: float) -> float:
        """Gamma distribution function."""
        from scipy.special import gammainc

        k = self.cv**-2
        return float(gammainc(k, max(0.0, x) * k / self.mean))


class Empirical(Law):
    """A distribution function by its points ``[probability, tokens]``, straight between them."""

    name: ClassVar[str] = "empirical"
    accepts: ClassVar[tuple[str, ...]] = ("points", "file")
    points: tuple[tuple[Number, Count], ...] = Field(min_length=2)

    @classmethod
    def shape(cls, data: Any, base: Path) -> Any:
        """Read the points from the file beside the scenario, if one is named."""
        if not isinstance(data, dict) or "file" not in data:
            return data
        if "points" in data:
            raise problem("an empirical law takes either points or file", "file")
        if not isinstance(data["file"], str):
            raise problem(f"expected the name of a CSV file, not {describe(data['file'])}", "file")
        return {"points": read_points(base / data["file"])}

    @field_validator("points")
    @classmethod
    def _is_a_cdf(cls, points: tuple[tuple[float, int], ...]) -> tuple[tuple[float, int], ...]:
        for index, (before, after) in enumerate(pairwise(points), 1):
            if after[0] <= before[0] or after[1] < before[1]:
                raise problem(f"point {list(after)} does not lie above {list(before)}", index)
        if points[0][0] != 0 or points[-1][0] != 1:
            raise problem("the points must run from probability 0 (the least length) to 1 (the greatest)")
        return points

    @property
    def lower(self) -> int:
        """Tokens of the first point."""
        return self.points[0][1]

    @property
    def upper(self) -> int:
        """Tokens of the last point."""
        return self.points[-1][1]


def read_points(path: Path) -> list[list[float]]:
    """Read ``probability,tokens`` rows, with or without a heading, from a CSV file."""
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise problem(f"{path}: cannot be read: {reason}", "file") from None
    points: list[list[float]] = []
    for line, row in enumerate(rows, 1):
        if not row or (line == 1 and not _is_number(row[0])):
            continue
        if len(row) != 2 or not all(map(_is_number, row)):
            raise problem(f"{path}:{line}: expected two numbers, a probability and tokens", "file")
        points.append([float(row[0]), float(row[1])])
    return points


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


LAWS: dict[str, type[Law]] = {law.name: law for law in (Fixed, Uniform, Normal, Lognormal, Gamma, Empirical)}


def _read_law(value: object) -> object:
    """Check the one key that names the law; its parameters are left to the law."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        return {"fixed": value}
    if not isinstance(value, dict):
        raise problem(f"expected a length: a number, or one of {', '.join(LAWS)}, not {describe(value)}")
    check_keys(value, LAWS)
    if len(value) != 1:
        raise problem(f"expected exactly one of {', '.join(LAWS)}, not {len(value)} laws")
    return value


def _law_name(value: Any) -> str:
    return str(next(iter(value)))


LengthLaw = Annotated[
    Annotated[Fixed, Tag("fixed")]
    | Annotated[Uniform, Tag("uniform")]
    | Annotated[Normal, Tag("normal")]
    | Annotated[Lognormal, Tag("lognormal")]
    | Annotated[Gamma, Tag("gamma")]
    | Annotated[Empirical, Tag("empirical")],
    Discriminator(_law_name),
    BeforeValidator(_read_law),
    PlainSerializer(lambda law: law.written()),
]
