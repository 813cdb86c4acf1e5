"""Whether a window met the traffic that it was meant for, by the client's stamps and the steps' names."""

from __future__ import annotations

import pytest

from handmade import Sent, handmade
from profile_timelines import Made, at, vllm
from servebench.analysis.data import RunData
from servebench.analysis.profile.stepping import Steps, find_steps, none
from servebench.analysis.profile.traffic import as_meant, describe, find_traffic

NO_STEPS = none("no timeline")


def run_of(*requests: Sent) -> RunData:
    return handmade(requests, (0, 1000)).data()


def steps_of(*names: str) -> Steps:
    made = Made()
    for k, name in enumerate(names):
        made.range(name, 10 * k, 10 * k + 8)
    return find_steps(made.timeline(span=(at(-100), at(2000))), at(0), at(1000))


def decoding(start: float, end: float) -> Sent:
    """Sent 1 ms before the first of its tokens."""
    return Sent(start - 1, chunks=[start, (start + end) / 2, end])


PREFILLS = [Sent(10 * k, chunks=[10 * k + 10]) for k in range(20)]  # one token each, one after another


def test_shares_and_levels_are_of_the_window() -> None:
    run = run_of(Sent(0, chunks=[40, 60, 100]), Sent(20, chunks=[60, 80]), Sent(500, chunks=[510]))
    found = find_traffic(run, at(0), at(200))
    # prefill [0, 40) and [20, 60), decode [40, 100) and [60, 80)
    assert found.shares == {"idle": 0.5, "prefill_only": 0.2, "decode_only": 0.2, "mixed": 0.1}
    assert (found.peak, found.requests) == (2, 2)
    assert found.mean == pytest.approx((100 + 60) / 200)


def test_a_prefill_window_with_nothing_but_prefill_is_as_meant() -> None:
    traffic = find_traffic(run_of(*PREFILLS), at(0), at(200))
    assert as_meant("prefill", traffic, NO_STEPS) == (True, None)
    assert as_meant("prefill", traffic, steps_of(vllm(1, 512, 0), vllm(0, 0, 0))) == (True, None)


def test_a_step_with_a_request_in_decode_spoils_a_prefill_window() -> None:
    traffic = find_traffic(run_of(*PREFILLS), at(0), at(200))
    for name in (vllm(1, 512, 3), vllm(0, 0, 3)):
        met, reason = as_meant("prefill", traffic, steps_of(vllm(1, 512, 0), name))
        assert met is False
        assert reason == "1 of 2 steps had requests in decode, by their names"


def test_a_decode_window() -> None:
    traffic = find_traffic(run_of(*(decoding(k, 900) for k in range(5))), at(100), at(800))
    assert as_meant("decode", traffic, NO_STEPS) == (True, None)
    assert as_meant("decode", traffic, steps_of(vllm(0, 0, 5))) == (True, None)
    met, reason = as_meant("decode", traffic, steps_of(vllm(0, 0, 5), vllm(1, 9, 4)))
    assert (met, reason) == (False, "1 of 2 steps had requests in prefill, by their names")
    met, reason = as_meant("prefill", traffic, NO_STEPS)
    assert met is False
    assert reason == (
        "by the client's stamps 0 % of the time with requests in flight was prefill only, "
        "and a prefill window needs 90 %"
    )


@pytest.mark.parametrize(("prefill", "met"), [(60, True), (120, False)])
def test_idle_time_does_not_count_against_a_window_but_other_traffic_does(prefill: float, met: bool) -> None:
    """Of 1000 ms the last 200 are idle; of the rest so much has a prefill in it."""
    run = run_of(Sent(-10, chunks=[-5, 800]), Sent(100, chunks=[100 + prefill, 101 + prefill]))
    assert as_meant("decode", find_traffic(run, at(0), at(1000)), NO_STEPS)[0] is met


@pytest.mark.parametrize("kind", ["prefill", "decode", "mixed", "range"])
def test_without_any_request_no_window_is_as_meant(kind: str) -> None:
    traffic = find_traffic(run_of(Sent(0, chunks=[10, 20])), at(100), at(200))
    assert as_meant(kind, traffic, NO_STEPS) == (False, "no request was in flight during the window")


def test_a_mixed_window_needs_any_request_and_a_free_one_nothing() -> None:
    traffic = find_traffic(run_of(Sent(0, chunks=[10, 20])), at(0), at(100))
    assert as_meant("mixed", traffic, NO_STEPS) == as_meant("range", traffic, NO_STEPS) == (True, None)
    assert as_meant("free", traffic, NO_STEPS) == (None, "the window was meant for no particular traffic")


def test_a_request_cut_off_after_the_window_was_in_flight_during_it() -> None:
    run = run_of(Sent(0))  # sent, and never answered
    assert find_traffic(run, at(100), at(200)).shares["prefill_only"] == 1
    assert describe("prefill", find_traffic(run, at(100), at(200)), NO_STEPS) == {
        "shares": {"idle": 0, "prefill_only": 1, "decode_only": 0, "mixed": 0},
        "in_flight": {"mean": 1, "max": 1},
        "requests": 1,
        "as_meant": True,
        "reason": None,
    }


def test_a_run_without_requests() -> None:
    traffic = find_traffic(run_of(), at(0), at(100))
    assert (traffic.requests, traffic.shares["idle"], traffic.mean, traffic.peak) == (0, 1, 0, 0)
