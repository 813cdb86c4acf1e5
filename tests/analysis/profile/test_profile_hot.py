"""Hot functions: own and inclusive shares, recursion counted once."""

from __future__ import annotations

import pytest

from perf_parts import stacks_of
from servebench.analysis.profile.hot import MOST, hot


def by_name(document: dict[str, object]) -> dict[str, tuple[float, float]]:
    functions = document["functions"]
    assert isinstance(functions, list)
    return {each["name"]: (each["share"], each["self_share"]) for each in functions}


def test_own_time_and_time_below() -> None:
    document = hot(stacks_of("main a b 6", "main a 2", "main c 2"))
    assert document["samples"] == 10
    assert by_name(document) == {"main": (1, 0), "a": (0.8, 0.2), "b": (0.6, 0.6), "c": (0.2, 0.2)}
    assert [each["name"] for each in document["functions"]] == ["b", "a", "c", "main"]


def test_recursion_counts_a_sample_once() -> None:
    assert by_name(hot(stacks_of("f f f 3", "f g f 1", "g 4"))) == {"f": (0.5, 0.5), "g": (0.625, 0.5)}


def test_own_shares_sum_to_one_and_bound_the_others() -> None:
    functions = by_name(hot(stacks_of("a b c 3", "a c 5", "d 9", "a 1"))).values()
    assert sum(own for _, own in functions) == pytest.approx(1)
    assert all(own <= share <= 1 for share, own in functions)


def test_instances_of_a_template_count_together_but_not_across_modules() -> None:
    document = hot(stacks_of("x::f<int>[m] 1", "x::f<long>[m] 2", "x::f<int>[n] 1"))
    assert [(each["name"], each["module"], each["share"]) for each in document["functions"]] == [
        ("x::f", "m", 0.75),
        ("x::f", "n", 0.25),
    ]


def test_only_the_hottest_are_listed() -> None:
    document = hot(stacks_of(*(f"main f{number} {number + 1}" for number in range(200))))
    names = [each["name"] for each in document["functions"]]
    assert names[:2] == ["f199", "f198"]
    assert "main" in names
    assert len(names) == MOST + 1


def test_what_goes_beside_it_and_no_module_is_null() -> None:
    document = hot(stacks_of("f 1"), {"cycles": None, "reason": "no hardware"}, "flame.svg")
    assert document["functions"][0]["module"] is None
    assert document["counters"] == {"cycles": None, "reason": "no hardware"}
    assert document["flame_graph"] == "flame.svg"
    assert hot(stacks_of("f 1"))["counters"] is None


def test_no_samples_no_functions() -> None:
    document = hot(stacks_of("f 0"))
    assert document["samples"] == 0
    assert document["functions"] == []
