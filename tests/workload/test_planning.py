import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from servebench.errors import UsageError
from servebench.scenario import Scenario, load_scenario, shipped_scenarios
from servebench.workload import Plan, cohort_bounds_ns, make_plan
from servebench.workload.overview import rank_correlation
from servebench.workload.planning import MAX_ROWS, Purpose, uniforms

WORKLOAD = {
    "input_tokens": {"lognormal": {"mean": 300, "cv": 1, "min": 20}},
    "output_tokens": {"gamma": {"mean": 90, "cv": 1}},
}
CLASSES = [
    {"name": "a", "weight": 3, "input_tokens": 100, "output_tokens": 10, "shared_prefix": {"tokens": 30, "groups": 4}},
    {"name": "b", "weight": 1, "input_tokens": 500, "output_tokens": 20},
    {"name": "c", "weight": 4, "input_tokens": 900, "output_tokens": 30, "shared_prefix": {"tokens": 64, "groups": 2}},
]

GOLDEN_DUE = [1066629000, 2191246000, 2304759000, 2551839000]
GOLDEN_INPUT = [855, 428, 863, 996]
GOLDEN_CONTENT = [5508380389399565708, 5122921980697040955, 2965722535650691205, 863759094790977251]


def plan(seed=1, workload=WORKLOAD, **load):
    load = load or {"poisson": "20/s", "duration": "60s", "warmup": "5s", "drain": "10s"}
    return make_plan(
        Scenario.from_resolved({"servebench": 1, "name": "t", "workload": workload, "load": load, "seed": seed})
    )


def same(first, second):
    """Names of the columns that are byte-identical."""
    other = second.columns()
    return {name for name, column in first.columns().items() if column.tobytes() == other[name].tobytes()}


ALL = {"scheduled_ns", "input_tokens", "output_tokens", "class_id", "content_seed", "prefix_group", "prefix_tokens"}


@pytest.mark.parametrize("name", shipped_scenarios())
def test_the_same_seed_gives_the_same_plan(name):
    first, second = make_plan(load_scenario(name)), make_plan(load_scenario(name))
    assert same(first, second) == ALL
    assert first.hash == second.hash


def test_another_process_makes_the_same_plan():
    code = "import servebench.scenario as s, servebench.workload as w; print(w.make_plan(s.load_scenario('chat')).hash)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == make_plan(load_scenario("chat")).hash


def test_plans_stay_what_they_were():
    """A change here breaks every comparison with older results: it needs a new PLAN_VERSION."""
    golden = plan(
        workload={"input_tokens": {"uniform": {"min": 1, "max": 1000}}, "output_tokens": 5}, poisson=2, requests=4
    )
    assert golden.scheduled_ns.tolist() == GOLDEN_DUE
    assert golden.input_tokens.tolist() == GOLDEN_INPUT
    assert golden.content_seed.tolist() == GOLDEN_CONTENT


@pytest.mark.parametrize(
    ("seed", "untouched"),
    [
        ({"arrivals": 2, "lengths": 1, "content": 1}, set()),
        ({"arrivals": 1, "lengths": 2, "content": 1}, {"scheduled_ns", "content_seed"}),
        (
            {"arrivals": 1, "lengths": 1, "content": 2},
            {"scheduled_ns", "input_tokens", "output_tokens", "class_id", "prefix_tokens"},
        ),
    ],
)
def test_one_seed_changes_one_thing(seed, untouched):
    rows = {"poisson": "20/s", "requests": 900}
    unchanged = same(plan(workload={"classes": CLASSES}, **rows), plan(seed, workload={"classes": CLASSES}, **rows))
    assert unchanged == (untouched or ALL - {"scheduled_ns"})


def test_streams_of_one_seed_are_independent():
    ranks = np.array([uniforms(1, purpose)(4000) for purpose in Purpose])
    off_diagonal = np.corrcoef(ranks)[~np.eye(len(Purpose), dtype=bool)]
    assert abs(off_diagonal).max() < 0.06
    assert (ranks > 0).all()
    assert (ranks < 1).all()


def test_a_longer_plan_begins_like_the_shorter_one():
    short, long = plan(poisson="20/s", requests=100), plan(poisson="20/s", requests=1000)
    for name, column in short.columns().items():
        assert (column == long.columns()[name][:100]).all()


def test_a_changed_law_keeps_each_request_s_place_in_it():
    other = {**WORKLOAD, "input_tokens": {"normal": {"mean": 3000, "sd": 500}}}
    first, second = plan(), plan(workload=other)
    assert same(first, second) == ALL - {"input_tokens"}
    assert rank_correlation(first.input_tokens, second.input_tokens) > 0.999


def test_rows_are_in_the_order_of_their_due_times_in_whole_microseconds():
    due = plan().scheduled_ns
    assert (np.diff(due) >= 0).all()
    assert (due % 1000 == 0).all()


def test_the_plan_covers_warmup_window_and_drain():
    found = plan()
    assert cohort_bounds_ns(
        Scenario.from_resolved(
            {"servebench": 1, "name": "t", "workload": WORKLOAD, "load": {"poisson": 1, "duration": 60, "warmup": 5}}
        ).load
    ) == (5_000_000_000, 65_000_000_000)
    assert 74.5e9 < found.scheduled_ns[-1] < 75e9
    assert len(found) == pytest.approx(1500, abs=150)
    gaps = np.diff(found.scheduled_ns, prepend=0) / 1e9
    assert stats.kstest(gaps, "expon", (0, 1 / 20)).pvalue > 0.01


def test_a_number_of_requests_is_the_number_of_rows():
    assert len(plan(poisson="20/s", requests=123, warmup="2s")) == 123
    assert len(plan(closed={"concurrency": 4}, requests=123)) == 123


def test_a_closed_loop_has_no_due_times_and_rows_to_spare():
    found = plan(closed={"concurrency": 4}, duration="10s", warmup="2s")
    assert (found.scheduled_ns == -1).all()
    assert len(found) == 4 + 4 * 200 * 12


def test_classes_have_their_share_and_their_own_laws():
    found = plan(workload={"classes": CLASSES}, poisson="20/s", requests=8000)
    assert found.classes == ("a", "b", "c")
    assert np.bincount(found.class_id) / 8000 == pytest.approx([3 / 8, 1 / 8, 4 / 8], abs=0.02)
    for number, item in enumerate(CLASSES):
        rows = found.class_id == number
        assert (found.input_tokens[rows] == item["input_tokens"]).all()
        assert (found.output_tokens[rows] == item["output_tokens"]).all()


def test_prefix_groups_belong_to_one_class_each():
    found = plan(workload={"classes": CLASSES}, poisson="20/s", requests=8000)
    groups = [set(found.prefix_group[found.class_id == number].tolist()) for number in range(3)]
    assert groups == [{0, 1, 2, 3}, {-1}, {4, 5}]
    assert [set(found.prefix_tokens[found.class_id == number].tolist()) for number in range(3)] == [{30}, {0}, {64}]
    shares = np.bincount(found.prefix_group[found.class_id == 0]) / (found.class_id == 0).sum()
    assert shares == pytest.approx([0.25] * 4, abs=0.04)


def test_content_seeds_are_all_different_and_not_negative():
    found = plan(poisson="20/s", requests=50_000)
    assert np.unique(found.content_seed).size == 50_000
    assert found.content_seed.min() >= 0
    assert np.intersect1d(found.content_seed, plan(2, poisson="20/s", requests=50_000).content_seed).size == 0


def test_prompt_and_answer_are_coupled_within_a_class():
    found = plan(workload={**WORKLOAD, "correlation": 0.7}, poisson="20/s", requests=8000)
    alone = plan(poisson="20/s", requests=8000)
    assert rank_correlation(found.input_tokens, found.output_tokens) == pytest.approx(0.7, abs=0.03)
    assert rank_correlation(alone.input_tokens, alone.output_tokens) == pytest.approx(0, abs=0.03)
    assert (found.input_tokens == alone.input_tokens).all()
    assert stats.ks_2samp(found.output_tokens, alone.output_tokens).pvalue > 0.01


def test_a_plan_survives_its_file(tmp_path):
    found = plan(workload={"classes": CLASSES})
    found.write(tmp_path / "plan.parquet")
    again = Plan.read(tmp_path / "plan.parquet")
    assert again.hash == found.hash
    assert again.classes == found.classes
    assert same(found, again) == ALL


def test_a_plan_file_that_was_changed_is_refused(tmp_path):
    import pyarrow.parquet as pq

    plan(poisson=1, requests=9).write(tmp_path / "plan.parquet")
    table = pq.read_table(tmp_path / "plan.parquet")
    pq.write_table(table.slice(1), tmp_path / "plan.parquet")
    with pytest.raises(ValueError, match="does not match its stored hash"):
        Plan.read(tmp_path / "plan.parquet")


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ({"poisson": "1M/s", "duration": "1h"}, f"t: the load means .* requests; a plan holds at most {MAX_ROWS:,}"),
        ({"poisson": 1, "requests": "6M"}, "t: the load means 6e.06 requests"),
        ({"closed": {"concurrency": 1}, "requests": "6M"}, "t: the load means 6e.06 requests"),
        ({"poisson": "1/h", "duration": 1}, "t: no request is due in 1s; raise the rate, the length or seed.arrivals"),
        ({"poisson": "100/s", "requests": 5, "warmup": "1h"}, "t: no request is due after the warm-up"),
    ],
)
def test_a_load_that_cannot_be_planned_says_why(load, message):
    load = {key: 1_000_000 if value == "1M/s" else value for key, value in load.items()}
    with pytest.raises(UsageError, match=message):
        plan(**load)
