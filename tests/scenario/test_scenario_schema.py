import json

import pytest

from servebench.errors import UsageError
from servebench.scenario import Scenario, load_scenario

LAW = "{lognormal: {mean: 200, cv: 0.9, min: 32, max: 2k}}"


def load(write, text):
    return load_scenario(write("poisson: 4/s\n  duration: 60s\n  warmup: 5s", text)).load


def test_units_become_seconds_and_rates_per_second(write):
    scenario = load_scenario(write())
    assert scenario.load.stages[0].rate == 4.0
    assert (scenario.load.duration, scenario.load.warmup, scenario.load.drain) == (60.0, 5.0, 60.0)
    assert scenario.workload.classes[0].input_tokens.upper == 2000
    assert scenario.engine.sim is not None
    assert (scenario.engine.sim.base, scenario.engine.sim.max_num_seqs) == (0.008, 64)


def test_defaults_are_those_of_the_design(write):
    scenario = load_scenario(write("endpoint: {api: chat}\n", ""))
    endpoint = scenario.endpoint
    assert (endpoint.api, endpoint.model, endpoint.stream) == ("chat", "auto", True)
    assert (endpoint.connect_timeout, endpoint.idle_timeout, endpoint.timeout) == (10.0, 60.0, 600.0)
    assert scenario.load.max_in_flight is None
    assert scenario.load.throttle is None
    assert (scenario.seeds.arrivals, scenario.seeds.lengths, scenario.seeds.content) == (1, 1, 1)


def test_an_objective_is_a_metric_a_quantile_and_nanoseconds(write):
    scenario = load_scenario(write("{ttft: p95 < 1s}", "{ttft: [p50 < 200ms, p99.9 <= 2s], itl: p99 < 60ms}"))
    assert [(o.metric, o.quantile, o.limit_ns) for o in scenario.slo.objectives] == [
        ("ttft", "p50", 200_000_000),
        ("ttft", "p99.9", 2_000_000_000),
        ("itl", "p99", 60_000_000),
    ]


def test_a_closed_loop(write):
    found = load(write, "closed: {concurrency: 64, think: 2s}\n  requests: 500")
    assert found.closed and (found.closed.concurrency, found.closed.think) == (64, 2.0)
    assert (found.requests, found.duration, found.stages) == (500, None, ())


@pytest.mark.parametrize(
    ("text", "limit", "policy"),
    [("64", 64, "wait"), ("{limit: 64, policy: drop}", 64, "drop"), ("1k", 1000, "wait")],
)
def test_a_cap_in_flight(write, text, limit, policy):
    cap = load(write, f"poisson: 4/s\n  max_in_flight: {text}").max_in_flight
    assert cap and (cap.limit, cap.policy) == (limit, policy)


def test_a_throttle_keeps_its_period(write):
    throttle = load(write, "poisson: 4/s\n  throttle: 600/min").throttle
    assert throttle and (throttle.limit, throttle.period, throttle.rate) == (600, 60.0, 10.0)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("poisson: 4/s", 60.0),
        ("closed: {concurrency: 2}", 60.0),
        ("stages: [{poisson: 1/s, for: 10s}, {poisson: 2/s, for: 20s}]", 30.0),
        ("stages: [{poisson: 1/s, for: 10s}, {poisson: 2/s}]", 70.0),
        ("stages: [{poisson: 1/s, for: 10s}, {poisson: 2/s}]\n  duration: 15s", 15.0),
        ("stages: [{poisson: 1/s, for: 10s}]\n  duration: 10s", 10.0),
        ("poisson: 4/s\n  requests: 7", None),
    ],
)
def test_the_length_of_the_measured_window(write, text, duration):
    assert load(write, text).duration == duration


def test_the_rates_of_a_stage(write):
    ramp, constant = load(write, "stages: [{ramp: {from: 60/min, to: 3/s}, for: 10s}, {constant: 2/s}]").stages
    assert (ramp.rate, ramp.rate_end, ramp.mean_rate, ramp.last_rate, ramp.duration) == (1.0, 3.0, 2.0, 3.0, 10.0)
    assert (constant.cv, constant.mean_rate, constant.last_rate, constant.duration) == (0.0, 2.0, 2.0, None)


def test_warmup_auto_takes_no_time_of_the_plan(write):
    found = load(write, "poisson: 4/s\n  warmup: auto")
    assert (found.warmup, found.warmup_s) == ("auto", 0.0)


def test_vllm_flags_have_one_spelling(write):
    flags = "{max_num_seqs: 8, --enforce-eager: true, no-thing: null, dtype: auto, p: 0.5}"
    vllm = load_scenario(write("{max-model-len: 8192}", flags)).engine.vllm
    assert vllm is not None
    assert vllm.flags == {"max-num-seqs": 8, "enforce-eager": True, "no-thing": None, "dtype": "auto", "p": 0.5}


def test_environment_values_are_text(write):
    vllm = load_scenario(write("{max-model-len: 8192}", "{}, env: {VLLM_CPU_KVCACHE_SPACE: 1}")).engine.vllm
    assert vllm is not None
    assert vllm.env == {"VLLM_CPU_KVCACHE_SPACE": "1"}


def test_points_of_a_cdf_may_lie_beside_the_file(write, tmp_path):
    (tmp_path / "cdf.csv").write_text("probability,tokens\n0,10\n0.5,20\n\n1,100\n")
    scenario = load_scenario(write(LAW, "{empirical: {file: cdf.csv}}"))
    law = scenario.workload.classes[0].input_tokens
    assert law.points == ((0.0, 10), (0.5, 20), (1.0, 100))
    (tmp_path / "cdf.csv").unlink()
    assert Scenario.from_resolved(scenario.resolved()) == scenario


@pytest.mark.parametrize(
    "change",
    [
        ("", ""),
        (LAW, "{gamma: {mean: 90.5, cv: 2}}"),
        (LAW, "{normal: {mean: 90, sd: 3}}"),
        (LAW, "{lognormal: {p50: 90, p95: 400}}"),
        (LAW, "{lognormal: {p50: 90, sigma: 1}}"),
        (LAW, "{uniform: {min: 1, max: 4}}"),
        (LAW, "{empirical: {points: [[0, 1], [0.3, 9], [1, 12]]}}"),
        ("output_tokens: 16", "output_tokens: 16\n  shared_prefix: {tokens: 8, groups: 4}\n  correlation: -0.5"),
        ("poisson: 4/s", "constant: 4/s\n  max_in_flight: {limit: 3, policy: drop}\n  throttle: 600/min"),
        ("poisson: 4/s", "gamma: {rate: 1/min, cv: 13}"),
        ("poisson: 4/s", "ramp: {from: 0, to: 4/s}"),
        ("poisson: 4/s", "stages: [{ramp: {from: 1, to: 2}, for: 20s}, {gamma: {rate: 2, cv: 2}, for: 40s}]"),
        ("poisson: 4/s", "stages: [{ramp: {from: 1, to: 2}, for: 20s}, {poisson: 2}]"),
        ("poisson: 4/s\n  duration: 60s", "closed: {concurrency: 4, think: 10ms}\n  requests: 20"),
        ("warmup: 5s", "warmup: auto"),
        ("p95 < 1s", "[p50 < 1ms, p99.9 < 2m]"),
        ("seed: 1", "seed: {arrivals: 1, lengths: 2, content: 9223372036854775807}"),
        ("{max-model-len: 8192}", "{a: null, b: true, c: x, d: 0.5}, env: {A: b}"),
        ("api: chat", "api: completions, headers: {a: b}, extra_body: {top_k: 5, nested: {a: [1]}}"),
    ],
    ids=lambda change: change[1][:40],
)
def test_the_resolved_form_is_json_and_reads_back_equal(write, change):
    scenario = load_scenario(write(*change))
    resolved = scenario.resolved()
    again = Scenario.from_resolved(json.loads(json.dumps(resolved, allow_nan=False)))
    assert again == scenario
    assert again.resolved() == resolved


def test_the_resolved_form_is_itself_a_scenario_file(write, tmp_path):
    scenario = load_scenario(write())
    (tmp_path / "again.yaml").write_text(json.dumps(scenario.resolved()))
    assert load_scenario(tmp_path / "again.yaml") == scenario


def test_from_resolved_refuses_what_is_no_scenario():
    with pytest.raises(UsageError, match=r'^scenario: "name" is missing$'):
        Scenario.from_resolved({"servebench": 1})


def test_a_scenario_cannot_be_changed(write):
    from pydantic import ValidationError

    with pytest.raises(ValidationError, match="frozen"):
        load_scenario(write()).load.drain = 3.0
