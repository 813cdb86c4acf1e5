import pytest

from servebench.errors import UsageError
from servebench.scenario import load_scenario


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("load.poisson=8/s", ("load", "poisson"), 8.0),
        ("load.rate=8/s", ("load", "poisson"), 8.0),
        ("load.duration=2m", ("load", "duration"), 120.0),
        ("load.max_in_flight=8", ("load", "max_in_flight"), {"limit": 8, "policy": "wait"}),
        ("name=other", ("name",), "other"),
        ("endpoint.stream=false", ("endpoint", "stream"), False),
        ("endpoint.headers.x-a=1", ("endpoint", "headers"), {"x-a": "1"}),
        ("workload.output_tokens=1k", ("workload", "classes", 0, "output_tokens"), 1000),
        (
            "workload.input_tokens.lognormal.mean=300",
            ("workload", "classes", 0, "input_tokens", "lognormal", "mean"),
            300.0,
        ),
        ("engine.vllm.flags.max-num-seqs=128", ("engine", "vllm", "flags", "max-num-seqs"), 128),
        ("engine.vllm.flags.max_model_len=4096", ("engine", "vllm", "flags"), {"max-model-len": 4096}),
        ("engine.sim.max_num_seqs=5", ("engine", "sim", "max_num_seqs"), 5),
        ("engine.sim.max-num-seqs=5", ("engine", "sim", "max_num_seqs"), 5),
        ("seed=3", ("seed",), {"arrivals": 3, "lengths": 3, "content": 3}),
        ("seed.content=9", ("seed",), {"arrivals": 1, "lengths": 1, "content": 9}),
        ("slo.ttft=p99 < 2s", ("slo",), {"ttft": ["p99 < 2s"]}),
        ("slo={}", ("slo",), {}),
        ("description=", ("description",), ""),
    ],
)
def test_an_override_sets_what_its_path_names(write, override, path, value):
    found = load_scenario(write(), [override]).resolved()
    for step in path:
        found = found[step]
    assert found == value


def test_setting_one_load_law_takes_the_others_away(write):
    load = load_scenario(write(), ["load.closed.concurrency=8"]).load
    assert load.closed and load.closed.concurrency == 8
    assert load.stages == ()
    back = load_scenario(write(), ["load.closed.concurrency=8", "load.constant=2/s"]).load
    assert back.closed is None
    assert back.stages[0].law == "constant"


def test_requests_and_duration_replace_each_other(write):
    load = load_scenario(write(), ["load.requests=50"]).load
    assert (load.requests, load.duration) == (50, None)
    load = load_scenario(write(), ["load.requests=50", "load.duration=10s"]).load
    assert (load.requests, load.duration) == (None, 10.0)


def test_setting_a_length_law_replaces_the_other(write):
    scenario = load_scenario(
        write(), ["workload.input_tokens.uniform={min: 3, max: 9}", "workload.output_tokens.fixed=4"]
    )
    item = scenario.workload.classes[0]
    assert (item.input_tokens.lower, item.input_tokens.upper) == (3, 9)
    assert item.output_tokens.lower == item.output_tokens.upper == 4


def test_the_last_override_of_a_key_wins(write):
    assert load_scenario(write(), ["load.poisson=8/s", "load.poisson=2/s"]).load.stages[0].rate == 2.0


def test_classes_and_stages_are_reached_by_name_and_number(write):
    classes = "classes: [{name: a, input_tokens: 5, output_tokens: 5}, {name: b, input_tokens: 5, output_tokens: 5}]"
    flat = "input_tokens: {lognormal: {mean: 200, cv: 0.9, min: 32, max: 2k}}\n  output_tokens: 16"
    overrides = ["workload.classes.b.weight=9", "workload.classes.0.input_tokens=7"]
    first, second = load_scenario(write(flat, classes), overrides).workload.classes
    assert (first.weight, first.input_tokens.lower, second.weight) == (1.0, 7, 9.0)
    stages = "stages: [{poisson: 2/s, for: 20s}, {constant: 1/s}]"
    load = load_scenario(write("poisson: 4/s", stages), ["load.stages.0.ramp={from: 0, to: 2}"]).load
    assert [stage.law for stage in load.stages] == ["ramp", "constant"]


def test_the_rate_of_a_gamma_law(write):
    path = write("poisson: 4/s", "gamma: {rate: 4/s, cv: 3}")
    stage = load_scenario(path, ["load.rate=9/s"]).load.stages[0]
    assert (stage.law, stage.rate, stage.cv) == ("gamma", 9.0, 3.0)


@pytest.mark.parametrize("load", ["closed: {concurrency: 4}", "stages: [{poisson: 4/s}]", "ramp: {from: 1, to: 2}"])
def test_a_load_without_a_single_rate_says_so(write, load):
    with pytest.raises(
        UsageError, match=f"--set load.rate=8/s: the load has {load.split(':')[0]}, which has no single"
    ):
        load_scenario(write("poisson: 4/s", load), ["load.rate=8/s"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lod.rate=3", 'lod: unknown key "lod" (did you mean "load"?)'),
        ("load.poisonn=3", 'load.poisonn: unknown key "poisonn" (did you mean "poisson"?)'),
        ("load.max-in-flight=3", 'load.max-in-flight: unknown key "max-in-flight" (did you mean "max_in_flight"?)'),
        ("seed.contnt=9", 'seed.contnt: unknown key "contnt" (did you mean "content"?)'),
        (
            "engine.sim.max-num-sqs=1",
            'engine.sim.max-num-sqs: unknown key "max-num-sqs" (did you mean "max-num-seqs"?)',
        ),
        ("load.poisson=fast", 'load.poisson: expected a rate such as 4/s or 600/min, not "fast"'),
        ("load.poisson.x=3", '"load.poisson" is a single value and has no "x"'),
        ("load.stages.0.poisson=3", "load.stages: expected a list, not a mapping"),
        ("workload.input_tokens.mean=4", 'workload.input_tokens.mean: unknown key "mean" (known here: fixed,'),
        ("workload.classes.0.weight=3", "workload.classes: a workload takes either classes or input_tokens of its own"),
        ("load={}", "load: a load takes exactly one of"),
        ("name=", '"name" is missing'),
        ("name", "expected a dotted path and a value, such as load.poisson=8/s"),
        ("=3", "expected a dotted path and a value"),
        ("a..b=3", "expected a dotted path and a value"),
        ("name=[", "the value is not valid YAML (quote it if it is text): "),
        ("description=a: b", "the value is not valid YAML (quote it if it is text): "),
    ],
)
def test_a_bad_override_names_itself_and_the_nearest_key(write, override, message):
    with pytest.raises(UsageError) as caught:
        load_scenario(write(), [override])
    assert str(caught.value).startswith(f"--set {override}: {message}")
    assert "\n" not in str(caught.value)


def test_an_unknown_class_is_answered_with_the_known_ones(write):
    flat = "input_tokens: {lognormal: {mean: 200, cv: 0.9, min: 32, max: 2k}}\n  output_tokens: 16"
    path = write(flat, "classes: [{name: a, input_tokens: 5, output_tokens: 5}]")
    with pytest.raises(UsageError, match=r'"workload.classes" has no item "b" \(known: a\)'):
        load_scenario(path, ["workload.classes.b.weight=9"])


def test_an_error_elsewhere_still_points_into_the_file(write):
    path = write("warmup: 5s", "warmup: soon")
    with pytest.raises(UsageError, match=r"s\.yaml:10: load\.warmup"):
        load_scenario(path, ["load.poisson=8/s"])
