"""How a format is found: our own by the table, others' by their entry point."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from servebench.errors import UsageError
from servebench.report.exports import GROUP, OURS, find
from servebench.report.exports.exporter import Exporter

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


class Theirs:
    name = "theirs"
    help = "what a plug-in writes"

    def write(self, run: Any, summary: dict[str, Any], out: Path) -> list[Path]:
        out.write_text(summary["name"])
        return [out]


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of somebody else, and the entry points into it."""
    module = ModuleType("plugin_of_others")
    module.__dict__.update(good=Theirs(), made=Theirs, odd=3)
    monkeypatch.setitem(sys.modules, "plugin_of_others", module)
    entries = {
        "theirs": "plugin_of_others:good",
        "class": "plugin_of_others:made",
        "odd": "plugin_of_others:odd",
        "gone": "plugin_of_others:gone",
        "csv": "plugin_of_others:good",
    }
    points = [EntryPoint(name, value, GROUP) for name, value in entries.items()]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points if group == GROUP else [])
    return module


@pytest.mark.parametrize("name", OURS)
def test_ours_are_exporters(name: str) -> None:
    found = find(name)
    assert isinstance(found, Exporter)
    assert (found.name, found.help) == (name, OURS[name])


def test_ours_are_registered_as_others_register_theirs() -> None:
    points = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["entry-points"][GROUP]
    assert list(points) == list(OURS)
    for name, value in points.items():
        assert EntryPoint(name, value, GROUP).load() is find(name)


@pytest.mark.parametrize("name", ["theirs", "class"])
def test_others_are_found(name: str, plugins: ModuleType) -> None:
    assert find(name).help == "what a plug-in writes"


def test_ours_keep_their_names(plugins: ModuleType) -> None:
    assert find("csv").help == OURS["csv"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("odd", "is no exporter"),
        ("gone", "cannot be loaded: AttributeError"),
        ("their", 'did you mean "theirs"'),
        ("parket", 'did you mean "parquet"'),
        ("xml", "expected csv, parquet, hlog, vllm, prometheus, markdown"),
    ],
)
def test_what_cannot_be_found_is_told_in_a_line(name: str, words: str, plugins: ModuleType) -> None:
    with pytest.raises(UsageError) as caught:
        find(name)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
