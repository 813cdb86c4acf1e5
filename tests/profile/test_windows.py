"""Windows as a user writes them, and the loads that they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runs import scenario
from servebench.errors import UsageError
from servebench.profile.loads import (
    AHEAD_S,
    ARMING_S,
    COMPANY_S,
    PATIENCE_S,
    SETTLED_S,
    SPARE,
    Seen,
    begin_s,
    decoding_requests,
    load_of,
)
from servebench.profile.tool import Bounds
from servebench.profile.tools import NAMES, tool_class
from servebench.profile.windows import ProfileRequest, Window, parse_settings, parse_window, parse_windows
from servebench.workload.planning import make_plan

LENGTHS = {
    "classes": [
        {"name": "chat", "weight": 9, "input_tokens": 20, "output_tokens": 10},
        {"name": "document", "weight": 1, "input_tokens": 3000, "output_tokens": 10},
    ]
}
LOAD = {"poisson": "20/s", "duration": "10s", "warmup": "2s", "drain": "5s"}


def shaped(folder: Path, window: Window, bounds: Bounds, seen: Seen, concurrency: int = 4) -> Any:
    base = scenario(folder, LOAD, workload=LENGTHS, slo={"ttft": "p95 < 1s"})
    return load_of(window, base, make_plan(base), bounds, concurrency, seen), base


class TestWords:
    def test_kinds_and_ranges(self) -> None:
        assert parse_window("decode") == Window("decode", "decode")
        assert parse_window("12s..14.5s") == Window("at-12s-14.5s", "range", 12.0, 14.5)
        assert parse_window("500ms..2") == Window("at-0.5s-2s", "range", 0.5, 2.0)
        assert [w.name for w in parse_windows(["prefill,decode", "mixed"])] == ["prefill", "decode", "mixed"]

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("decoding", 'window "decoding": expected prefill, decode, mixed or a range such as 12s..14s'),
            ("decod", 'did you mean "decode"?'),
            ("2s..1s", "must begin at 0s or later and end after its beginning"),
            ("1s..1s", "end after its beginning"),
            ("1s..two", 'window "1s..two": '),
            ("", 'window "": expected'),
        ],
    )
    def test_what_cannot_be_read_is_told(self, text: str, says: str) -> None:
        with pytest.raises(UsageError) as error:
            parse_window(text)
        assert says in str(error.value)
        assert "\n" not in str(error.value)

    def test_none_is_captured_twice(self) -> None:
        with pytest.raises(UsageError, match='window "decode" is asked for twice'):
            parse_windows(["decode", "prefill,decode"])

    def test_settings(self) -> None:
        assert parse_settings(["trace=cuda,nvtx", "a=b=c"]) == {"trace": "cuda,nvtx", "a": "b=c"}
        with pytest.raises(UsageError, match="expected KEY=VALUE"):
            parse_settings(["stacks"])
        with pytest.raises(UsageError, match='"a" is given twice'):
            parse_settings(["a=1", "a=2"])

    def test_every_tool_can_be_imported_and_an_unknown_one_is_told(self) -> None:
        assert [tool_class(name).name for name in NAMES] == list(NAMES)
        with pytest.raises(UsageError, match=r'no profiler "pref": expected torch, .*did you mean "perf"'):
            tool_class("pref")


class TestBounds:
    def test_seconds_alone_lift_the_limit_of_steps(self) -> None:
        default = Bounds(5.0, 50)
        assert ProfileRequest("torch").bounds(default) == default
        assert ProfileRequest("torch", seconds=2.0).bounds(default) == Bounds(2.0, None)
        assert ProfileRequest("torch", steps=9).bounds(default) == Bounds(5.0, 9)

    def test_a_mixed_window_takes_four_times_the_steps_and_a_range_its_own_seconds(self) -> None:
        assert parse_window("mixed").bounds(Bounds(5.0, 50)) == Bounds(5.0, 200)
        assert parse_window("decode").bounds(Bounds(5.0, 50)) == Bounds(5.0, 50)
        assert parse_window("3s..4s").bounds(Bounds(5.0, 50)) == Bounds(1.0, None)


class TestLoads:
    def test_prefill_takes_long_prompts_and_one_token(self, tmp_path: Path) -> None:
        load, _ = shaped(tmp_path, parse_window("prefill"), Bounds(3.0), Seen())
        plan = make_plan(load)
        assert set(plan.input_tokens.tolist()) == {3000}
        assert set(plan.output_tokens.tolist()) == {1}
        assert load.load.closed.concurrency == 2
        assert load.load.duration == ARMING_S + 3.0 + 1.0

    def test_decode_takes_short_prompts_and_answers_that_outlast_the_window(self, tmp_path: Path) -> None:
        load, _ = shaped(tmp_path, parse_window("decode"), Bounds(3.0), Seen(itl_s=0.01), concurrency=7)
        plan = make_plan(load)
        assert set(plan.input_tokens.tolist()) == {20}
        assert set(plan.output_tokens.tolist()) == {int(2 * (ARMING_S + 3.0) / 0.01)}
        assert (load.load.requests, load.load.closed.concurrency, len(plan)) == (7, 7, 7)

    def test_a_bound_of_steps_needs_no_more_tokens_than_steps(self, tmp_path: Path) -> None:
        load, _ = shaped(tmp_path, parse_window("decode"), Bounds(60.0, 50), Seen(itl_s=0.01))
        assert int(make_plan(load).output_tokens[0]) == 2 * ARMING_S / 0.01 + 100

    def test_neither_outgrows_the_context(self, tmp_path: Path) -> None:
        seen = Seen(itl_s=0.001, max_model_len=1024)
        load, _ = shaped(tmp_path, parse_window("decode"), Bounds(5.0), seen)
        assert int(make_plan(load).output_tokens[0]) == 1024 - 20 - SPARE
        load, _ = shaped(tmp_path, parse_window("prefill"), Bounds(5.0), seen)
        assert int(make_plan(load).input_tokens[0]) == 1024 - 1 - SPARE

    @pytest.mark.parametrize("text", ["mixed", "3s..4s"])
    def test_the_others_run_the_scenarios_own_plan(self, tmp_path: Path, text: str) -> None:
        load, base = shaped(tmp_path, parse_window(text), Bounds(5.0), Seen())
        assert make_plan(load).hash == make_plan(base).hash

    @pytest.mark.parametrize("text", ["prefill", "decode", "mixed"])
    def test_none_has_objectives_and_no_request_is_given_up_while_the_profiler_stores(
        self, tmp_path: Path, text: str
    ) -> None:
        window = parse_window(text)
        load, base = shaped(tmp_path, window, Bounds(5.0), Seen())
        assert load.slo.objectives == ()
        assert min(load.endpoint.idle_timeout, load.endpoint.timeout) >= PATIENCE_S
        assert load.load.drain == (PATIENCE_S if window.is_isolating else base.load.drain)

    def test_a_mixed_window_begins_just_before_a_long_prompt_is_due(self, tmp_path: Path) -> None:
        base = scenario(tmp_path, LOAD, workload=LENGTHS)
        plan = make_plan(base)
        begin = begin_s(parse_window("mixed"), base, plan)
        due = plan.scheduled_ns / 1e9
        company = {
            t: sum(1 for other in due if t - COMPANY_S <= other < t)
            for t in due[plan.input_tokens == 3000]
            if 2.0 + SETTLED_S + AHEAD_S <= t < 12.0
        }
        assert len(company) > 5
        [chosen] = [t for t in company if t == pytest.approx(begin + AHEAD_S)]
        assert company[chosen] == max(company.values())

    @pytest.mark.parametrize(
        ("load", "workload"),
        [
            (LOAD, {"input_tokens": {"uniform": {"min": 50, "max": 90}}, "output_tokens": 10}),
            ({"closed": {"concurrency": 2}, "requests": 50, "warmup": "2s"}, LENGTHS),
            (LOAD | {"duration": "1s", "drain": "100ms"}, LENGTHS),  # no document is due in so short a window
        ],
    )
    def test_without_one_it_begins_once_the_load_has_settled(self, tmp_path: Path, load: Any, workload: Any) -> None:
        base = scenario(tmp_path, load, workload=workload)
        assert begin_s(parse_window("mixed"), base, make_plan(base)) == 2.0 + SETTLED_S

    def test_a_range_begins_when_it_says(self, tmp_path: Path) -> None:
        base = scenario(tmp_path, LOAD, workload=LENGTHS)
        assert begin_s(parse_window("3s..4s"), base, make_plan(base)) == 3.0

    def test_how_many_decode(self) -> None:
        assert decoding_requests(3, Seen(decoding=40.0)) == 3
        assert decoding_requests(None, Seen(decoding=10.2)) == 11
        assert decoding_requests(None, Seen()) == 4
        assert decoding_requests(None, Seen(decoding=5000.0)) == 256
