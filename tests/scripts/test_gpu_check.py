import json

import _gpu_check
import pytest
from _gpu_check import Report, missing_message, missing_packages, series_of, summary_line

from servebench.scenario.loading import load_scenario


def test_every_requirement_of_the_package_is_looked_for(monkeypatch):
    monkeypatch.setattr(_gpu_check, "_installed", lambda name: False)
    missing = missing_packages()
    assert {"click", "hdrhistogram", "nvidia-ml-py", "pyarrow", "uvloop", "pbr"} <= set(missing)
    assert all(name.replace("-", "").replace("_", "").isalnum() for name in missing)


def test_what_is_installed_is_not_missing(monkeypatch):
    assert not {"click", "numpy", "nvidia-ml-py"} & set(missing_packages())


def test_the_message_says_how_to_bring_it(capsys):
    assert missing_message(["hdrhistogram", "torch"]) == 2
    said = capsys.readouterr().err
    assert "lacks: hdrhistogram torch" in said
    assert "pip download --no-deps" in said


@pytest.mark.parametrize("name", _gpu_check.SCENARIOS)
@pytest.mark.parametrize("sizes", [_gpu_check.GPU_SIZES, _gpu_check.CPU_SIZES], ids=["gpu", "cpu"])
def test_its_scenarios_are_valid(tmp_path, name, sizes):
    path = tmp_path / "scenario.yaml"
    path.write_text(_gpu_check.SCENARIOS[name].format(seconds=30, **sizes))
    assert load_scenario(path).load.duration == 30


def test_the_report_is_printed_and_kept(tmp_path, capsys):
    with Report(tmp_path) as report:
        report.title("A part")
        report.check("one", True, "as it should be")
        report.check("two", False, "not at all")
    assert capsys.readouterr().out == (tmp_path / "check.txt").read_text()
    assert "FAIL two: not at all" in (tmp_path / "check.txt").read_text()
    checks = json.loads((tmp_path / "check.json").read_text())["checks"]
    assert [check["good"] for check in checks.values()] == [True, False]


def test_a_line_on_a_series_keeps_nulls_apart():
    assert summary_line("gpu-0", "power_w", [1.0, None, 3.0]).split(maxsplit=2)[2] == (
        "n     3, null 1: min 1  mean 2  max 3"
    )
    assert summary_line("gpu-0", "xid", [None]).endswith("n     1, all null")


def test_only_nvml_rows_make_its_series():
    class Table:
        @staticmethod
        def to_pylist():
            row = {"source": "nvml", "device": "gpu-0", "name": "power_w", "t_ns": 1, "value": 2.0}
            return [row, row | {"source": "host"}]

    assert series_of(Table) == {("gpu-0", "power_w"): [(1, 2.0)]}
