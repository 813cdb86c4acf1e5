"""Every kind of bad input gives one line: where, what, and what was probably meant."""

import pytest

from servebench.errors import UsageError
from servebench.scenario import load_scenario

LAW = "{lognormal: {mean: 200, cv: 0.9, min: 32, max: 2k}}"
IN = "workload.input_tokens"

BAD = [
    # keys
    ("name: base", "nmae: base", 2, 'nmae: unknown key "nmae" (did you mean "name"?)'),
    ("name: base", "name: base\nname: b", 3, 'key "name" is given twice'),
    ("name: base\n", "", 1, '"name" is missing'),
    ("poisson: 4/s", "poison: 4/s", 8, 'load.poison: unknown key "poison" (did you mean "poisson"?)'),
    ("ttft: p95", "tfft: p95", 11, 'slo.tfft: unknown key "tfft" (did you mean "ttft"?)'),
    ("model: tiny", "modle: tiny", 13, 'engine.vllm.modle: unknown key "modle" (did you mean "model"?)'),
    ("base: 8ms", "bas: 8ms", 14, 'engine.sim.bas: unknown key "bas" (did you mean "base"?)'),
    ("base: 8ms", "max_num_seqs: 8", 14, 'engine.sim.max-num-seqs: "max-num-seqs" is given twice'),
    ("seed: 1", "seed: {arivals: 1}", 15, 'seed.arivals: unknown key "arivals" (did you mean "arrivals"?)'),
    ("output_tokens", "outptu_tokens", 6, 'workload.outptu_tokens: unknown key "outptu_tokens"'),
    ("  output_tokens: 16\n", "", 4, 'workload: "output_tokens" is missing'),
    ("api: chat", "xyzzy: 1", 3, 'endpoint.xyzzy: unknown key "xyzzy" (known here: api, model,'),
    # version and name
    ("servebench: 1", "servebench: 2", 1, "the schema version says 2; this servebench reads `servebench: 1`"),
    ("servebench: 1\n", "", 1, "the schema version is missing"),
    ("name: base", "name: a/b", 2, "name: expected a name of letters, digits, '-', '_' and '.', not \"a/b\""),
    # endpoint
    (
        "api: chat",
        "api: chta",
        3,
        "endpoint.api: expected 'chat' or 'completions', not 'chta' (did you mean \"chat\"?)",
    ),
    ("api: chat", "stream: yes", 3, 'endpoint.stream: expected true or false, not "yes"'),
    ("api: chat", "timeout: 0", 3, "endpoint.timeout: expected more than 0, not 0"),
    (
        "api: chat",
        "headers: {Authorization: x}",
        3,
        "endpoint.headers.Authorization: credentials are taken from the env",
    ),
    ("api: chat", "headers: {X-Api-Key: x}", 3, "endpoint.headers.X-Api-Key: credentials are taken from the env"),
    ("api: chat", 'headers: {X: "a\\nb"}', 3, "endpoint.headers.X: expected one line of text"),
    ("api: chat", "headers: 3", 3, "endpoint.headers: expected a mapping of header names to values, not 3"),
    ("api: chat", "extra_body: {stream: true}", 3, "endpoint.extra_body.stream: servebench sets this key itself"),
    ("api: chat", "extra_body: []", 3, "endpoint.extra_body: expected a mapping"),
    ("{api: chat}", "chat", 3, "endpoint: expected a mapping with api, model,"),
    # lengths
    (LAW, "{lognormall: {}}", 5, f'{IN}.lognormall: unknown key "lognormall" (did you mean "lognormal"?)'),
    (LAW, "{normal: {mean: 5, sd: 1}, fixed: 5}", 5, f"{IN}: expected exactly one of fixed,"),
    (LAW, "{}", 5, f"{IN}: expected exactly one of fixed,"),
    (LAW, "0", 5, f"{IN}: expected more than 0, not 0"),
    (LAW, "1.5", 5, f"{IN}: expected a whole number such as 512 or 2k, not 1.5"),
    (LAW, "[1, 2]", 5, f"{IN}: expected a length: a number, or one of fixed, uniform,"),
    (LAW, "true", 5, f"{IN}: expected a length: a number, or one of fixed, uniform,"),
    (LAW, "many", 5, f'{IN}: expected a number such as 512 or 2k, not "many"'),
    (LAW, "{lognormal: 5}", 5, f"{IN}.lognormal: expected a mapping with min, max, mean,"),
    (LAW, "{lognormal: {mean: 200}}", 5, f"{IN}.lognormal: a lognormal law takes mean and cv, or p50 and p95, or"),
    (LAW, "{lognormal: {p50: 9, p95: 9}}", 5, f"{IN}.lognormal.p95: p95 9 must be above p50 9"),
    (LAW, "{normal: {mean: 9, sd: 1, cv: 1}}", 5, f"{IN}.normal: a normal law takes mean and either sd or cv"),
    (LAW, "{gamma: {mean: 9}}", 5, f'{IN}.gamma: "cv" is missing'),
    (LAW, "{gamma: {mean: 9, cv: 0}}", 5, f"{IN}.gamma.cv: expected more than 0, not 0"),
    (LAW, "{uniform: {min: 9, max: 8}}", 5, f"{IN}.uniform.max: max 8 is below min 9"),
    ("max: 2k", "max: 3", 5, f"{IN}.lognormal.max: max 3 is below min 32"),
    ("min: 32, max: 2k", "min: 8k", 5, f"{IN}.lognormal: only "),
    ("mean: 200,", "mena: 200,", 5, f'{IN}.lognormal.mena: unknown key "mena" (did you mean "mean"?)'),
    (LAW, "{empirical: {}}", 5, f'{IN}.empirical: "points" is missing'),
    (LAW, "{empirical: {points: 3}}", 5, f"{IN}.empirical.points: expected a list, not 3"),
    (LAW, "{empirical: {points: [[0, 1]]}}", 5, f"{IN}.empirical.points: expected a list with enough items"),
    (
        LAW,
        "{empirical: {points: [[0, 1, 2], [1, 2]]}}",
        5,
        f"{IN}.empirical.points.0: expected a pair of a probability",
    ),
    (
        LAW,
        "{empirical: {points: [[0.1, 1], [1, 2]]}}",
        5,
        f"{IN}.empirical.points: the points must run from probability 0",
    ),
    (
        LAW,
        "{empirical: {points: [[0, 1], [0.9, 2]]}}",
        5,
        f"{IN}.empirical.points: the points must run from probability 0",
    ),
    (LAW, "{empirical: {points: [[0, 5], [1, 2]]}}", 5, f"{IN}.empirical.points.1: point [1.0, 2] does not lie above"),
    (
        LAW,
        "{empirical: {points: [[0, 1], [0, 2], [1, 2]]}}",
        5,
        f"{IN}.empirical.points.1: point [0.0, 2] does not lie",
    ),
    (LAW, "{empirical: {file: nope.csv}}", 5, f"{IN}.empirical.file: "),
    (LAW, "{empirical: {file: 3}}", 5, f"{IN}.empirical.file: expected the name of a CSV file, not 3"),
    (
        LAW,
        "{empirical: {file: a, points: []}}",
        5,
        f"{IN}.empirical.file: an empirical law takes either points or file",
    ),
    # workload
    (
        "output_tokens: 16",
        "output_tokens: 16\n  correlation: 2",
        7,
        "workload.correlation: expected a number from -1 to 1",
    ),
    (
        "output_tokens: 16",
        "output_tokens: 16\n  classes: []",
        7,
        "workload.classes: a workload takes either classes or",
    ),
    (
        "output_tokens: 16",
        "output_tokens: 16\n  shared_prefix: {tokens: 32}",
        7,
        "workload.shared_prefix.tokens: a shared",
    ),
    # load
    ("poisson: 4/s", "poisson: fast", 8, 'load.poisson: expected a rate such as 4/s or 600/min, not "fast"'),
    ("poisson: 4/s", "poisson: 0/s", 8, "load.poisson: expected more than 0, not 0"),
    ("poisson: 4/s", "poisson: -4/s", 8, 'load.poisson: expected a rate such as 4/s or 600/min, not "-4/s"'),
    ("  poisson: 4/s\n", "", 7, "load: a load takes exactly one of poisson, constant, gamma, ramp, stages, closed"),
    ("poisson: 4/s", "poisson: 4/s\n  constant: 4/s", 9, "load.constant: a load takes exactly one of"),
    ("poisson: 4/s", "gamma: {rate: 4/s, cvv: 3}", 8, 'load.gamma.cvv: unknown key "cvv" (did you mean "cv"?)'),
    ("poisson: 4/s", "gamma: {rate: 4/s}", 8, 'load.gamma: "cv" is missing'),
    ("poisson: 4/s", "gamma: {rate: 4/s, cv: 0}", 8, "load.gamma.cv: expected a cv above 0 and up to 100, not 0"),
    ("poisson: 4/s", "gamma: 4/s", 8, 'load.gamma: expected a mapping with rate and cv, not "4/s"'),
    ("poisson: 4/s", "ramp: {from: 0, to: 0}", 8, "load.ramp: a ramp needs a rate above 0 at one of its ends"),
    ("poisson: 4/s", "ramp: {from: 0, too: 1}", 8, 'load.ramp.too: unknown key "too" (did you mean "to"?)'),
    ("poisson: 4/s", "stages: 4", 8, "load.stages: expected a list, not 4"),
    ("poisson: 4/s", "stages: []", 8, "load.stages: expected at least one stage"),
    (
        "poisson: 4/s",
        "stages: [5]",
        8,
        "load.stages.0: expected a mapping with poisson, constant, gamma, ramp, for, not 5",
    ),
    (
        "poisson: 4/s",
        "stages:\n    - {poisson: 2/s, for: 3s}\n    - {constant: 2/s, fro: 3s}",
        10,
        'load.stages.1.fro: unknown key "fro" (did you mean "for"?)',
    ),
    ("poisson: 4/s", "stages: [{poisson: 2/s}, {poisson: 3/s, for: 3s}]", 8, 'load.stages.0: "for" is missing'),
    (
        "poisson: 4/s",
        "stages: [{poisson: 2/s, constant: 3/s}]",
        8,
        "load.stages.0.constant: a stage takes exactly one of",
    ),
    (
        "poisson: 4/s",
        "stages: [{poisson: 2/s, for: 9s}]",
        9,
        "load.duration: the stages last 9 s, the duration says 60 s",
    ),
    (
        "poisson: 4/s",
        "stages: [{poisson: 2/s, for: 90s}, {poisson: 1/s}]",
        9,
        "load.duration: the last stage never starts",
    ),
    (
        "poisson: 4/s\n  duration: 60s",
        "ramp: {from: 1, to: 2}\n  requests: 9",
        9,
        "load.requests: a ramp needs its length",
    ),
    (
        "poisson: 4/s\n  duration: 60s",
        "stages: [{ramp: {from: 1, to: 0}, for: 9s}]\n  requests: 9",
        9,
        "load.requests: stages",
    ),
    ("poisson: 4/s", "closed: 64", 8, "load.closed: expected a mapping with concurrency, think, not 64"),
    ("poisson: 4/s", "closed: {concurrency: 0}", 8, "load.closed.concurrency: expected more than 0, not 0"),
    (
        "poisson: 4/s",
        "closed: {concurrency: 8}\n  max_in_flight: 3",
        9,
        "load.max_in_flight: max_in_flight caps an open",
    ),
    ("duration: 60s", "duration: 60s\n  requests: 50", 10, "load.requests: a load takes either duration or requests"),
    (
        "duration: 60s",
        "duration: 60 parsecs",
        9,
        'load.duration: expected a duration such as 800ms, 60s or 2m, not "60 p',
    ),
    (
        "duration: 60s",
        "max_in_flight: {limit: 3, policy: dorp}",
        9,
        "load.max_in_flight.policy: expected 'wait' or 'drop', not 'dorp' (did you mean \"drop\"?)",
    ),
    ("duration: 60s", "throttle: 600/fortnight", 9, "load.throttle: expected a rate such as 4/s or 600/min, not"),
    ("duration: 60s", "throttle: 0.5/s", 9, "load.throttle: expected a whole number"),
    ("warmup: 5s", "warmup: atuo", 10, 'load.warmup: expected a duration such as 800ms, 60s or 2m, not "atuo"'),
    # the rest
    ("p95 < 1s", "p95 > 1s", 11, 'slo.ttft: expected an objective such as p95 < 800ms, not "p95 > 1s"'),
    ("p95 < 1s", "p0 < 1s", 11, "slo.ttft: expected an objective such as p95 < 800ms"),
    ("p95 < 1s", "p95 < soon", 11, 'slo.ttft: expected a duration such as 800ms, 60s or 2m, not "soon"'),
    (
        "max-model-len: 8192",
        "max-model-len: [1]",
        13,
        "engine.vllm.flags.max-model-len: expected one value, not a list",
    ),
    ("max-model-len: 8192", "a-b: 1, a_b: 2", 13, 'engine.vllm.flags.a_b: the flag "a-b" is given twice'),
    ("max-model-len: 8192", "api-key: x", 13, "engine.vllm.flags.api-key: secrets are taken from the environment only"),
    ("{max-model-len: 8192}", "{}, env: {HF_TOKEN: x}", 13, "engine.vllm.env.HF_TOKEN: secrets are taken from the env"),
    ("{max-model-len: 8192}", "{}, env: {A: [x]}", 13, "engine.vllm.env.A: expected text or a number, not a list"),
    ("seed: 1", "seed: -1", 15, "seed: expected a whole number from 0 to 2^63 - 1, not -1"),
    ("seed: 1", "seed: {content: x}", 15, 'seed.content: expected a whole number from 0 to 2^63 - 1, not "x"'),
]


@pytest.mark.parametrize(("old", "new", "line", "message"), BAD, ids=[f"{line}-{new}"[:50] for _, new, line, _ in BAD])
def test_bad_scenario(write, old, new, line, message):
    path = write(old, new)
    with pytest.raises(UsageError) as caught:
        load_scenario(path)
    assert str(caught.value).startswith(f"{path}:{line}: {message}")
    assert "\n" not in str(caught.value)


def test_a_bad_cdf_file_is_named_with_its_line(write, tmp_path):
    (tmp_path / "cdf.csv").write_text("probability,tokens\n0,1\n0.5,x\n")
    with pytest.raises(UsageError, match=r"s\.yaml:5: .*empirical\.file: .*cdf\.csv:3: expected two numbers"):
        load_scenario(write(LAW, "{empirical: {file: cdf.csv}}"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cht", 'cht: no such scenario file, nor a shipped scenario of that name (did you mean "chat"?)'),
        ("zzzz", "zzzz: no such scenario file, nor a shipped scenario of that name (shipped: batch, chat,"),
        ("/", "/: is a folder; a scenario is a YAML file or one of batch, chat,"),
    ],
)
def test_a_scenario_that_is_not_there(name, message):
    with pytest.raises(UsageError) as caught:
        load_scenario(name)
    assert str(caught.value).startswith(message)
