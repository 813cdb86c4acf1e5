"""Limits as people write them."""

from __future__ import annotations

import re

import pytest

from servebench.errors import UsageError
from servebench.experiment.gate.limits import parse_limit


@pytest.mark.parametrize(
    ("text", "figure", "relative", "bound", "shown"),
    [
        ("ttft.p99 < +5%", "ttft.p99", True, 0.05, "ttft.p99 < +5%"),
        ("ttft.p99<+5 %", "ttft.p99", True, 0.05, "ttft.p99 < +5%"),
        ("ttft.p99 <= +2.5%", "ttft.p99", True, 0.025, "ttft.p99 < +2.5%"),
        ("output_tokens_per_s > -3%", "output_tokens_per_s", True, -0.03, "output_tokens_per_s > -3%"),
        ("output_tokens_per_s ≥ −3%", "output_tokens_per_s", True, -0.03, "output_tokens_per_s > -3%"),
        ("ttft.p99 < 800ms", "ttft.p99", False, 800, "ttft.p99 < 800ms"),
        ("ttft.p99.9 < 1.5s", "ttft.p99_9", False, 1500, "ttft.p99_9 < 1.5s"),
        ("itl.p50 < 250us", "itl.p50", False, 0.25, "itl.p50 < 250us"),
        ("goodput_per_s > 600/min", "goodput_per_s", False, 10, "goodput_per_s > 600/min"),
        ("total_tokens_per_s > 2k", "total_tokens_per_s", False, None, ""),
        ("attainment > 95%", "attainment", False, 0.95, "attainment > 95%"),
        ("failed_share < 0.01", "failed_share", False, 0.01, "failed_share < 0.01"),
        ("j_per_output_token < 0.4 J", "j_per_output_token", False, 0.4, "j_per_output_token < 0.4 J"),
        ("preemptions < 10", "preemptions", False, 10, "preemptions < 10"),
    ],
)
def test_what_can_be_read(text: str, figure: str, relative: bool, bound: float | None, shown: str) -> None:
    if bound is None:
        with pytest.raises(UsageError, match="expected a rate"):
            parse_limit(text)
        return
    found = parse_limit(text)
    assert (found.figure.name, found.relative, found.text) == (figure, relative, shown)
    assert found.bound == pytest.approx(bound)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft.p99", 'is no limit; write "ttft.p99 < +5%"'),
        ("ttft.p99 < ", "is no limit"),
        ("tfft.p99 < +5%", 'no figure "tfft.p99" (did you mean "ttft.p99"?)'),
        ("ttft.p99 > +5%", 'has the wrong sign: ttft.p99 is better when lower; write "ttft.p99 < +5%"'),
        ("ttft.p99 < -5%", 'write "ttft.p99 < +5%"'),
        ("ttft.p99 > 800ms", 'write "ttft.p99 < 800ms"'),
        ("output_tokens_per_s < +3%", 'is better when higher; write "output_tokens_per_s > -3%"'),
        ("output_tokens_per_s > +3%", 'write "output_tokens_per_s > -3%"'),
        ("output_tokens_per_s < -3%", 'write "output_tokens_per_s > -3%"'),
        ("ttft.p99 < 5%", 'of what? Write "ttft.p99 < +5%" of the baseline'),
        ("ttft.p99 < 800", "800 what? Write 800ms or 800s"),
        ("ttft.p99 < fast", "expected a duration such as 800ms"),
        ("ttft.p99 < +0%", "must be above 0 %"),
        ("output_tokens_per_s > -100%", "below 100 %"),
        ("failed_share < +5%", "may be 0 in the baseline, so there is no share of it; write an absolute limit"),
    ],
)
def test_what_cannot_is_refused_with_the_right_spelling(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        parse_limit(text)
