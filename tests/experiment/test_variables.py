import pytest

from servebench.errors import UsageError
from servebench.experiment.variables import (
    Variable,
    combine,
    implied_endpoint,
    labels_of,
    launch_overrides,
    load_each,
    overrides_of,
    parse_vary,
    resolve_endpoint,
)
from servebench.scenario import load_scenario

FLAGS = "engine.vllm.flags"


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("load.rate=1,2,4", "load.rate", ("1", "2", "4")),
        ("load.rate=1..64:log7", "load.rate", ("1", "2", "4", "8", "16", "32", "64")),
        ("load.rate=1..64:log8", "load.rate", ("1", "1.811", "3.281", "5.944", "10.77", "19.5", "35.33", "64")),
        ("load.rate=0.5..2/s:log3", "load.rate", ("0.5/s", "1/s", "2/s")),
        ("load.rate=1..10:lin4", "load.rate", ("1", "4", "7", "10")),
        ("load.rate=1..10:3", "load.rate", ("1", "4", "7", "10")),
        ("load.rate=1..9:3", "load.rate", ("1", "4", "7")),
        ("load.rate=0..0.3:0.1", "load.rate", ("0", "0.1", "0.2", "0.3")),
        ("load.closed.concurrency=1..64:log4", "load.closed.concurrency", ("1", "4", "16", "64")),
        ("vllm.max_num_seqs=64,256", "engine.vllm.flags.max-num-seqs", ("64", "256")),
        ("vllm.--max-num-seqs=64,256", "engine.vllm.flags.max-num-seqs", ("64", "256")),
        (
            "vllm.gpu-memory-utilization=0.5..0.9:lin3",
            "engine.vllm.flags.gpu-memory-utilization",
            ("0.5", "0.7", "0.9"),
        ),
        (
            "vllm.max-num-batched-tokens=1k..4k:log3",
            "engine.vllm.flags.max-num-batched-tokens",
            ("1000", "2000", "4000"),
        ),
        ("engine.vllm.flags.max_num_seqs=1,2", "engine.vllm.flags.max-num-seqs", ("1", "2")),
        ("vllm.model=a/b,c", "engine.vllm.model", ("a/b", "c")),
        ("vllm.env.OMP_NUM_THREADS=1,2", "engine.vllm.env.OMP_NUM_THREADS", ("1", "2")),
        ("sim.max-num-seqs=4,8", "engine.sim.max_num_seqs", ("4", "8")),
        ("sim.base=1..8ms:log4", "engine.sim.base", ("1ms", "2ms", "4ms", "8ms")),
        ("load.gamma={rate: 4, cv: 1},{rate: 4, cv: 3}", "load.gamma", ("{rate: 4, cv: 1}", "{rate: 4, cv: 3}")),
        ("slo.ttft='p95 < 1s', 'p95 < 2s'", "slo.ttft", ("'p95 < 1s'", "'p95 < 2s'")),
        ("name='a,b',c", "name", ("'a,b'", "c")),
    ],
)
def test_lists_and_ranges_give_their_values(text, key, values):
    variable = parse_vary(text)
    assert (variable.key, variable.values) == (key, values)
    assert variable.written == text.partition("=")[0]
    assert variable.note == ""


def test_points_that_round_to_the_same_whole_number_are_kept_once_and_said():
    variable = parse_vary("load.closed.concurrency=1..4:log8")
    assert variable.values == ("1", "2", "3", "4")
    assert variable.note == (
        "load.closed.concurrency takes whole numbers: the 8 points of 1..4:log8 are 4 different ones"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("load.rate", "expected KEY=V1,V2,.."),
        ("load.rate=", "expected KEY=V1,V2,.."),
        ("=1,2", "expected KEY=V1,V2,.."),
        ("load.rate=4", "one value varies nothing"),
        ("load.rate=1,,2", "a value is missing between two commas"),
        ("load.rate=1,2,1", "the value 1 is given twice"),
        ("load.rate=1,2,1.0", "the value 1.0 is given twice"),
        ("load..rate=1,2", "no dotted path"),
        ("load.rate=1..10", "a range needs its points"),
        ("load.rate=1..10:cubic3", "a range needs its points"),
        ("load.rate=1..10:0", "a range needs its points"),
        ("load.rate=10..1:log3", "from the lower to the higher"),
        ("load.rate=0..8:log3", "write lin3"),
        ("load.rate=1..8:log1", "2 points at least"),
        ("load.rate=1..8:log501", "more than the 500"),
        ("load.rate=0..1:0.0001", "10001 values are more than the 500"),
        ("sim.base=1s..8ms:log3", "take the same unit"),
        ("load.closed.concurrency=1..1e400:log3", "must be finite"),
        ("load.rate=1..1e400:2", "must be finite"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(text, said):
    with pytest.raises(UsageError) as caught:
        parse_vary(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


RATES, SEQS = (
    Variable("load.rate", ("1", "2"), "load.rate"),
    Variable("engine.sim.max_num_seqs", ("4", "8"), "sim.seqs"),
)


def test_a_grid_takes_every_combination_and_a_zip_the_values_side_by_side():
    grid = combine([RATES, SEQS])
    assert [tuple(point.values()) for point in grid] == [("1", "4"), ("1", "8"), ("2", "4"), ("2", "8")]
    assert [tuple(point.values()) for point in combine([RATES, SEQS], "zip")] == [("1", "4"), ("2", "8")]
    assert overrides_of(grid[1]) == ("load.rate=1", "engine.sim.max_num_seqs=8")
    assert labels_of(grid[1], [RATES, SEQS]) == {"load.rate": 1, "sim.seqs": 8}


def test_a_key_twice_and_lists_of_different_lengths_are_refused():
    with pytest.raises(UsageError, match=r"load\.rate is varied twice"):
        combine([RATES, RATES])
    longer = Variable("seed", ("1", "2", "3"), "seed")
    with pytest.raises(UsageError, match=r"as many of each: load\.rate has 2, seed has 3"):
        combine([RATES, longer], "zip")


def test_the_keys_imply_the_server():
    assert implied_endpoint(["load.rate"]) is None
    assert resolve_endpoint(["load.rate"], None) == "vllm"
    assert resolve_endpoint(["engine.sim.base"], None) == "sim"
    assert resolve_endpoint(["load.rate", "engine.vllm.flags.max-num-seqs"], None) == "vllm"
    assert resolve_endpoint(["load.rate"], "http://127.0.0.1:1") == "http://127.0.0.1:1"
    with pytest.raises(UsageError, match="one run has only one"):
        implied_endpoint(["engine.sim.base", "engine.vllm.model"])
    with pytest.raises(UsageError, match="a vLLM that servebench starts, which --endpoint http://h is not"):
        resolve_endpoint(["engine.vllm.flags.max-num-seqs"], "http://h")


def test_a_key_that_the_scenario_does_not_know_is_refused_with_its_own_words():
    with pytest.raises(UsageError) as caught:
        load_each("smoke", (), [("load.poisson=1",), ("load.posson=2",)])
    assert 'unknown key "posson" (did you mean "poisson"?)' in str(caught.value)


def test_a_rate_for_a_closed_loop_is_refused_up_front():
    with pytest.raises(UsageError, match="the load has closed, which has no single rate"):
        load_each("smoke", ("load.closed.concurrency=4",), [("load.rate=1",)])


def test_sets_of_changes_that_make_the_same_scenario_are_refused_unless_asked_for():
    same = [("load.rate=60/min",), ("load.rate=1/s",)]
    with pytest.raises(UsageError, match="make the same scenario"):
        load_each("smoke", (), same)
    assert len(load_each("smoke", (), same, distinct=False)) == 2


def test_a_flag_can_be_varied_in_a_scenario_that_names_no_engine(tmp_path):
    file = tmp_path / "plain.yaml"
    file.write_text("servebench: 1\nname: p\nworkload: {input_tokens: 5, output_tokens: 5}\nload: {poisson: 1}\n")
    first = launch_overrides(file, (), ["engine.vllm.flags.max-num-seqs"])
    assert load_scenario(file, [*first, "engine.vllm.flags.max-num-seqs=2"]).engine.vllm.model == "tiny-random"
    assert launch_overrides("smoke", (), ["engine.vllm.flags.max-num-seqs"]) == ()
    assert launch_overrides(file, (), ["load.rate"]) == ()
