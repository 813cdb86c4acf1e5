"""A gate as JUnit XML, which every CI system shows: one test case a check, and one for whether there is a comparison.

The elements and attributes are those that the common schemas agree on, in the order that the strict one asks for.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree as Xml

from servebench.report.figures import plural
from servebench.report.gate import STATUS_WORDS, change, limit_of, plain, sentence, value

HOST = "localhost"  # a build's result must not depend on the machine's name
CLASS = "servebench.gate"


def junit(gate: dict[str, Any]) -> str:
    """The document of `servebench.experiment.gate.judge_gate` as the text of a JUnit XML file."""
    root = Xml.Element("testsuites")
    suite = Xml.SubElement(root, "testsuite", _suite(gate))
    properties = Xml.SubElement(suite, "properties")
    for name, text in _facts(gate).items():
        Xml.SubElement(properties, "property", {"name": name, "value": text})
    _comparison(suite, gate)
    for check in gate["checks"]:
        _case(suite, check, gate)
    Xml.SubElement(suite, "system-out").text = "\n".join(_notes(gate, "ok", "warn"))
    Xml.SubElement(suite, "system-err").text = "\n".join(_notes(gate, "fail"))
    Xml.indent(root, " ")
    return plain(Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n")


def _suite(gate: dict[str, Any]) -> dict[str, str]:
    failed = [check for check in gate["checks"] if _fails(check, gate)]
    begun = datetime.fromtimestamp((gate["created_ns"] or 0) // 1_000_000_000, UTC)
    return {
        "id": "0",
        "package": CLASS,
        "name": f"gate {gate['name']}",
        "hostname": HOST,
        "timestamp": begun.strftime("%Y-%m-%dT%H:%M:%S"),
        "tests": str(1 + len(gate["checks"])),
        "failures": str(len(failed)),
        "errors": str(int(gate["status"] == "invalid")),
        "skipped": str(sum(_skipped(check, gate) for check in gate["checks"])),
        "time": "0",
    }


def _fails(check: dict[str, Any], gate: dict[str, Any]) -> bool:
    return check["status"] == "fail" or bool(check["status"] == "undecided" and gate["strict"])


def _skipped(check: dict[str, Any], gate: dict[str, Any]) -> bool:
    return check["status"] in ("undecided", "not judged") and not _fails(check, gate)


def _facts(gate: dict[str, Any]) -> dict[str, str]:
    return {
        "baseline_runs": str(len(gate["runs"]["baseline"])),
        "candidate_runs": str(len(gate["runs"]["candidate"])),
        "confidence": f"{gate['confidence']:g}",
        "simulated": str(gate["simulated"]).lower(),
        "verdict": gate["verdict"]["status"],
    }


def _comparison(suite: Xml.Element, gate: dict[str, Any]) -> None:
    """The test case that says whether the runs could be compared at all."""
    case = Xml.SubElement(suite, "testcase", _named("the runs can be compared", gate))
    if gate["status"] == "invalid":
        notes = _notes(gate, "fail")
        Xml.SubElement(case, "error", {"message": notes[0], "type": "invalid"}).text = "\n".join(notes)


def _named(name: str, gate: dict[str, Any]) -> dict[str, str]:
    return {"name": name, "classname": f"{CLASS}.{gate['name']}", "time": "0"}


def _case(suite: Xml.Element, check: dict[str, Any], gate: dict[str, Any]) -> None:
    case = Xml.SubElement(suite, "testcase", _named(check["name"], gate))
    if _fails(check, gate):
        kind = "regression" if check["status"] == "fail" else check["status"]
        Xml.SubElement(case, "failure", {"message": sentence(check), "type": kind}).text = _figures(check)
    elif _skipped(check, gate):
        Xml.SubElement(case, "skipped", {"message": f"{STATUS_WORDS[check['status']]}: {check['text']}"})


def _figures(check: dict[str, Any]) -> str:
    lines = [
        f"baseline   {value(check, 'base')} ({plural(check['base_runs'], 'run')})",
        f"candidate  {value(check, 'cand')} ({plural(check['cand_runs'], 'run')})",
        f"change     {change(check['change'])}",
        f"limit      {limit_of(check)}",
        f"chance     {change(check['noise'])}",
    ]
    return "\n".join(lines)


def _notes(gate: dict[str, Any], *levels: str) -> list[str]:
    found = [each for each in gate["verdict"]["codes"] if each["level"] in levels]
    return [f"{each['code']}: {each['text']}" for each in found]
