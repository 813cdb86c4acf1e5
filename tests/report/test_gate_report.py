"""The gate's Markdown and JUnit: for a pull request and for every CI system."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from gate_sets import SCENARIO, run
from servebench.experiment.cell import Outcome
from servebench.experiment.gate import Rules, judge_gate
from servebench.experiment.gate.limits import parse_limit
from servebench.report.gate import markdown, sentence
from servebench.report.junit import junit

BASE = (100.0, 101.0, 99.0, 100.5, 99.5)

# What the common JUnit schemas agree on: attributes that an element must have, and its children in their order.
SCHEMA: dict[str, tuple[set[str], tuple[str, ...]]] = {
    "testsuites": (set(), ("testsuite",)),
    "testsuite": (
        {"id", "package", "name", "hostname", "timestamp", "tests", "failures", "errors", "skipped", "time"},
        ("properties", "testcase", "system-out", "system-err"),
    ),
    "properties": (set(), ("property",)),
    "property": ({"name", "value"}, ()),
    "testcase": ({"name", "classname", "time"}, ("skipped", "error", "failure")),
    "failure": ({"message", "type"}, ()),
    "error": ({"message", "type"}, ()),
    "skipped": ({"message"}, ()),
    "system-out": (set(), ()),
    "system-err": (set(), ()),
}


def sets(name: str, *values: float, **more: Any) -> list[Outcome]:
    return [run(f"{name}/r{i}", figures={"e2e.mean": value}, **more) for i, value in enumerate(values)]


def gate(candidate: list[Outcome], *limits: str, **rules: Any) -> dict[str, Any]:
    return judge_gate(candidate, sets("base", *BASE), Rules(tuple(map(parse_limit, limits)), **rules))


PASSED = gate(sets("cand", 100, 100, 100))
FAILED = gate(sets("cand", 120, 120, 120), "e2e.mean < +5%")
UNDECIDED = gate(sets("cand", 102, 102, 102), "e2e.mean < +1%")
STRICT = gate(sets("cand", 102, 102, 102), "e2e.mean < +1%", strict=True)
INVALID = gate(sets("cand", 100, scenario=SCENARIO | {"workload": {"input_tokens": '<30> & "more"'}}))
ALL = pytest.mark.parametrize("found", [PASSED, FAILED, UNDECIDED, STRICT, INVALID])


def check_element(element: Xml.Element) -> None:
    """Attributes and children as the schema has them."""
    needed, children = SCHEMA[element.tag]
    assert set(element.attrib) == needed, element.tag
    places = [children.index(child.tag) for child in element]
    assert places == sorted(places), element.tag
    for child in element:
        check_element(child)


class TestJUnit:
    @ALL
    def test_it_is_well_formed_and_of_the_common_schema(self, found: dict[str, Any]) -> None:
        root = Xml.fromstring(junit(found))
        assert root.tag == "testsuites"
        check_element(root)

    @ALL
    def test_the_suite_counts_what_is_in_it(self, found: dict[str, Any]) -> None:
        suite = Xml.fromstring(junit(found))[0]
        cases = suite.findall("testcase")
        assert suite.get("tests") == str(len(cases)) == str(1 + len(found["checks"]))
        for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert suite.get(count) == str(sum(case.find(tag) is not None for case in cases))

    @ALL
    def test_a_ci_system_fails_the_build_when_the_gate_does(self, found: dict[str, Any]) -> None:
        suite = Xml.fromstring(junit(found))[0]
        bad = int(suite.get("failures") or 0) + int(suite.get("errors") or 0)
        assert (bad > 0) == (found["exit_code"] != 0)

    def test_a_failure_has_the_figures(self) -> None:
        case = next(c for c in Xml.fromstring(junit(FAILED)).iter("testcase") if c.get("name") == "e2e.mean < +5%")
        failure = case.find("failure")
        assert failure is not None
        expected = "e2e.mean: 100 ms → 120 ms (+20.0 %, limit +5.0 %): worse by more than the limit"
        assert failure.get("message") == expected
        assert (failure.text or "").splitlines()[:2] == ["baseline   100 ms (5 runs)", "candidate  120 ms (3 runs)"]

    def test_an_undecided_check_is_skipped_and_with_strict_a_failure(self) -> None:
        skipped = Xml.fromstring(junit(UNDECIDED)).find(".//skipped")
        assert skipped is not None
        assert (skipped.get("message") or "").startswith("undecided: beyond the limit")
        strict = Xml.fromstring(junit(STRICT)).find(".//failure")
        assert strict is not None
        assert strict.get("type") == "undecided"

    def test_folders_of_odd_names_leave_it_well_formed(self) -> None:
        odd = "cand\x07\udce9\ufffe<&>\"'"
        found = gate([run(f"{odd}/r", figures={"e2e.mean": 100.0}, verdict="INVALID")])
        assert found["status"] == "invalid"
        for text in (junit(found), markdown(found)):
            text.encode()
        error = Xml.fromstring(junit(found)).find(".//error")
        assert error is not None
        assert "cand???<&>\"'" in (error.text or "")

    def test_the_same_runs_give_the_same_bytes(self) -> None:
        assert junit(FAILED) == junit(gate(sets("cand", 120, 120, 120), "e2e.mean < +5%"))


class TestMarkdown:
    def test_how_often_equal_code_passes_is_said_only_where_it_is_known(self) -> None:
        promise = "Equal code passes at least 99.9 % of gates."
        assert promise in markdown(PASSED)
        assert promise not in markdown(STRICT)
        assert promise not in markdown(judge_gate(sets("cand", 100), sets("base", 100), Rules()))

    @pytest.mark.parametrize(
        ("found", "begins"),
        [
            (PASSED, "### ✅ servebench gate: queue (SIMULATED)\n\n**PASSED** – "),
            (FAILED, "### ❌ servebench gate: queue (SIMULATED)\n\n**REGRESSION** – e2e.mean: worse than allowed"),
            (STRICT, "### ❌ servebench gate: queue (SIMULATED)\n\n**REGRESSION** – e2e.mean: undecided"),
            (INVALID, "### ⛔ servebench gate: queue (SIMULATED)\n\n**INVALID** – nothing was judged"),
        ],
    )
    def test_it_begins_with_the_answer(self, found: dict[str, Any], begins: str) -> None:
        assert markdown(found).startswith(begins)

    def test_a_limit_that_no_run_can_be_held_to_is_said_to_be_the_reason(self) -> None:
        found = gate(sets("cand", 100, 100), "ttfv.p99 < +5%")
        assert found["exit_code"] == 3
        assert "a given limit cannot be judged, which is no pass" in markdown(found)

    @ALL
    def test_every_row_of_the_table_has_as_many_cells(self, found: dict[str, Any]) -> None:
        rows = [line for line in markdown(found).splitlines() if line.startswith("|")]
        assert len(rows) == (2 + len(found["checks"]) if found["checks"] else 0)
        assert len({row.replace("\\|", "").count("|") for row in rows}) <= 1

    def test_a_check_is_a_row_with_both_figures_change_and_limit(self) -> None:
        row = next(line for line in markdown(FAILED).splitlines() if line.startswith("| `e2e.mean"))
        assert "| 100 ms | 120 ms | +20.0 % | &lt; +5.0 % |" in row
        assert "❌ worse by more than the limit" in row

    def test_what_runs_say_cannot_break_the_text(self) -> None:
        text = markdown(INVALID)
        assert "&lt;30> &amp;" in text
        assert "<30>" not in text


def test_the_sentence_of_an_absolute_limit_has_no_change() -> None:
    found = gate(sets("cand", 900), "e2e.mean < 800ms")["checks"][0]
    assert sentence(found) == "e2e.mean: 100 ms → 900 ms: beyond the limit"
