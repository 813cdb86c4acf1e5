from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sanitizer_logs import (
    API,
    CLEAN,
    CLEAN_RACES,
    DIVERGED,
    GREETING,
    HAZARD,
    LEAK,
    OUT_OF_BOUNDS,
    RACE,
    UNINITIALIZED,
    log,
)
from servebench.profile.readers.sanitizer_log import read_sanitizer
from servebench.profile.tool import ProfileError


def read(tmp_path: Path, *parts: str) -> dict[str, Any]:
    path = tmp_path / "sanitizer.log"
    path.write_text(log(*parts))
    return read_sanitizer(path)


@pytest.mark.parametrize("summary", [CLEAN, CLEAN_RACES])
def test_nothing_found_passes(tmp_path: Path, summary: str) -> None:
    assert read(tmp_path, summary) == {
        "passed": True,
        "reason": None,
        "errors": 0,
        "leaked_bytes": None,
        "findings": [],
        "not_printed": 0,
    }


def test_equal_reports_are_one_finding(tmp_path: Path) -> None:
    reports = [OUT_OF_BOUNDS.format(thread=thread) for thread in (64, 65, 66)]
    result = read(tmp_path, *reports, "========= ERROR SUMMARY: 3 errors")
    assert result["passed"] is False
    assert result["errors"] == 3
    (finding,) = result["findings"]
    assert finding["kind"] == "invalid global write"
    assert finding["severity"] == "error"
    assert finding["kernel"] == "scale_kernel(float *, int)"
    assert finding["place"] == "scale.cu:14"
    assert finding["count"] == 3
    assert finding["bytes"] is None
    assert "by thread (64,0,0)" in finding["example"]
    assert "Host Frame" not in finding["example"]


def test_findings_apart_by_what_and_where(tmp_path: Path) -> None:
    result = read(
        tmp_path, OUT_OF_BOUNDS.format(thread=1), API, DIVERGED, UNINITIALIZED, "========= ERROR SUMMARY: 4 errors"
    )
    found = {(each["kind"], each["kernel"], each["place"]) for each in result["findings"]}
    assert found == {
        ("invalid global write", "scale_kernel(float *, int)", "scale.cu:14"),
        ("cudaErrorLaunchFailure of cudaFree", None, None),
        ("barrier error: Divergent thread(s) in warp", "threadDivergence(int*)", "divergence.cu:61"),
        ("uninitialized global read", "gather<__half>(const __half *, int)", None),
    }


def test_races_count_their_hazards(tmp_path: Path) -> None:
    race = RACE.format(severity="Error")
    result = read(tmp_path, race, HAZARD, "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)")
    assert result["passed"] is False
    assert result["errors"] == 2
    first, second = result["findings"]
    assert (first["kind"], first["count"]) == ("race with a Write", 508)
    assert (first["kernel"], first["place"]) == ("sumKernel(int *, int *)", "block_error.cu:41")
    assert (second["kind"], second["kernel"], second["count"]) == ("WAW hazard", "overwrite(void)", 1)


def test_warnings_are_shown_and_pass(tmp_path: Path) -> None:
    race = RACE.format(severity="Warning")
    result = read(tmp_path, race, "========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)")
    assert result["passed"] is True
    assert [each["severity"] for each in result["findings"]] == ["warning"]


def test_leaks_fail(tmp_path: Path) -> None:
    summaries = ["========= LEAK SUMMARY: 2048 bytes leaked in 2 allocations", "========= ERROR SUMMARY: 2 errors"]
    result = read(tmp_path, LEAK, LEAK, *summaries)
    assert result["passed"] is False
    assert result["leaked_bytes"] == 2048
    (finding,) = result["findings"]
    assert (finding["kind"], finding["count"], finding["bytes"]) == ("leak", 2, 2048)


def test_no_leaks_were_looked_for_and_none_were_there(tmp_path: Path) -> None:
    result = read(tmp_path, "========= LEAK SUMMARY: 0 bytes leaked in 0 allocations", CLEAN)
    assert (result["passed"], result["leaked_bytes"]) == (True, 0)


def test_summaries_of_several_processes_add_up(tmp_path: Path) -> None:
    result = read(tmp_path, CLEAN, OUT_OF_BOUNDS.format(thread=1), "========= ERROR SUMMARY: 1 error", CLEAN)
    assert (result["passed"], result["errors"]) == (False, 1)


def test_errors_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    more = "========= ERROR SUMMARY: 5 errors were not printed. Use --print-limit option to adjust the number"
    result = read(tmp_path, OUT_OF_BOUNDS.format(thread=1), "========= ERROR SUMMARY: 105 errors", more)
    assert (result["errors"], result["not_printed"]) == (105, 5)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([OUT_OF_BOUNDS.format(thread=1)], "no summary: the sanitizer did not finish"),
        (["========= Error: No attachable process found. compute-sanitizer timed-out."], "No attachable process found"),
        (
            ["========= Target application terminated before first instrumented API call", CLEAN],
            "terminated before first instrumented API call",
        ),
        (["========= Internal Sanitizer Error: out of memory", CLEAN], "Internal Sanitizer Error"),
    ],
)
def test_a_tool_that_checked_nothing_neither_passes_nor_fails(tmp_path: Path, parts: list[str], reason: str) -> None:
    result = read(tmp_path, *parts)
    assert result["passed"] is None
    assert reason in result["reason"]


def test_foreign_and_missing_files_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("INFO: started\n")
    with pytest.raises(ProfileError, match="is no log of Compute Sanitizer"):
        read_sanitizer(path)
    with pytest.raises(ProfileError, match="cannot be read: No such file"):
        read_sanitizer(tmp_path / "none")


def test_a_greeting_alone_is_a_tool_that_did_not_finish(tmp_path: Path) -> None:
    path = tmp_path / "cut.log"
    path.write_text(GREETING + "\n")
    assert read_sanitizer(path)["passed"] is None
