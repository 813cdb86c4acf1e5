from __future__ import annotations

import re
from pathlib import Path

import pytest

from ncu_files import LAUNCH, MEMORY, OCCUPANCY, SPEED, WHOLE, with_values, write_details, write_raw
from servebench.profile.readers.ncu_csv import MISSING, read_ncu
from servebench.profile.readers.ncu_table import factor, number, read_launches
from servebench.profile.tool import ProfileError

GEMM = "void gemm<float, (int)4>(Params<float>, const float *)"


def test_a_row_of_the_raw_page(tmp_path: Path) -> None:
    (row,) = read_ncu(write_raw(tmp_path / "ncu.csv", [(GEMM, WHOLE)]))
    assert row["kernel"] == GEMM
    assert row["launches"] == 1
    assert row["duration_ms"] == pytest.approx(1.25)
    assert row["compute_percent"] == 22.5
    assert row["memory_percent"] == 91.0
    assert row["dram_percent"] == 90.0
    assert row["gb_per_s"] == pytest.approx(3600)
    assert row["peak_gb_per_s"] == pytest.approx(4000)
    # (400 + 200 + 2 * 1500) operations a cycle, 1.5e9 cycles a second, 3.6e12 bytes a second
    assert row["flop_per_byte"] == pytest.approx(1.5)
    assert row["occupancy_percent"] == pytest.approx(61.2)
    assert row["possible_occupancy_percent"] == 75
    assert row["registers"] == 40
    assert row["missing"] == {}


def test_stalls_are_shares_of_all_cycles_and_issuing_is_none(tmp_path: Path) -> None:
    (row,) = read_ncu(write_raw(tmp_path / "ncu.csv", [(GEMM, WHOLE)]))
    assert [(each["reason"], each["share"]) for each in row["stalls"]] == [
        ("long_scoreboard", pytest.approx(0.6)),
        ("wait", pytest.approx(0.15)),
        ("not_selected", pytest.approx(0.1)),
    ]
    assert row["stalls"][0]["text"] == "waits for data from L2 or device memory"


@pytest.mark.parametrize(
    ("sm", "memory", "dram", "roof", "words"),
    [
        ("22", "91", "90", "bandwidth", r"near the bandwidth roof \(90 %\): move fewer bytes"),
        ("22", "80", "80", "bandwidth", "move fewer bytes"),
        ("93", "85", "85", "compute", r"near the compute roof \(93 %\): faster math .*lower precision"),
        ("85", "92", "30", "cache", r"near the roof of a cache \(92 %, device memory 30 %\)"),
        (
            "22",
            "35",
            "34",
            "latency",
            r"near no roof \(memory 35 %, compute 22 %\), so latency: more parallelism \(occupancy is 61 %\); a warp "
            r"mostly waits for data from L2 or device memory \(60 % of its time\)",
        ),
        ("79.9", "79.9", "79.9", "latency", "so latency"),
    ],
)
def test_readings(tmp_path: Path, sm: str, memory: str, dram: str, roof: str, words: str) -> None:
    values = {"sm__throughput": sm, "gpu__compute_memory": memory, "gpu__dram": dram}
    path = write_raw(tmp_path / "ncu.csv", [(GEMM, with_values(WHOLE, **values))])
    (row,) = read_ncu(path)
    assert row["roof"] == roof
    assert re.search(words, row["reading"])


def test_launches_of_a_kernel_are_one_row_weighed_by_their_time(tmp_path: Path) -> None:
    fast = with_values(WHOLE, gpu__time_duration="250.00", sm__throughput="82.5", launch__registers="48")
    other = with_values(WHOLE, gpu__time_duration="1,000.00")
    path = write_raw(tmp_path / "ncu.csv", [("small", other), (GEMM, WHOLE), (GEMM, fast)])
    first, second = read_ncu(path)
    assert (first["kernel"], first["launches"]) == (GEMM, 2)
    assert first["duration_ms"] == pytest.approx(0.75)
    assert first["compute_percent"] == pytest.approx((1.25 * 22.5 + 0.25 * 82.5) / 1.5)
    assert first["registers"] == 48
    assert (second["kernel"], second["launches"]) == ("small", 1)


def test_the_details_page(tmp_path: Path) -> None:
    speed = "GPU Speed Of Light Throughput"
    metrics = [
        (speed, "DRAM Frequency", "Ghz", "2.60"),
        (speed, "Memory Throughput", "%", "88.10"),
        (speed, "DRAM Throughput", "%", "50.00"),
        (speed, "Duration", "ms", "2.50"),
        (speed, "Compute (SM) Throughput", "%", "31.00"),
        ("Memory Workload Analysis", "Memory Throughput", "Gbyte/s", "2,000.00"),
        ("Occupancy", "Theoretical Occupancy", "%", "100"),
        ("Occupancy", "Achieved Occupancy", "%", "93.10"),
        ("Launch Statistics", "Registers Per Thread", "register/thread", "24"),
    ]
    (row,) = read_ncu(write_details(tmp_path / "ncu.csv", [(GEMM, metrics)]))
    assert row["duration_ms"] == pytest.approx(2.5)
    assert row["compute_percent"] == 31
    assert row["memory_percent"] == 88.1
    assert row["gb_per_s"] == pytest.approx(2000)
    assert row["peak_gb_per_s"] == pytest.approx(4000)
    assert (row["occupancy_percent"], row["possible_occupancy_percent"], row["registers"]) == (93.1, 100, 24)
    assert row["roof"] == "cache"
    assert set(row["missing"]) == {"stalls", "flop_per_byte"}


@pytest.mark.parametrize(
    ("metrics", "missing"),
    [
        (SPEED + OCCUPANCY + LAUNCH, {"gb_per_s", "peak_gb_per_s", "flop_per_byte", "stalls"}),
        (SPEED + MEMORY, {"occupancy_percent", "possible_occupancy_percent", "registers", "stalls", "flop_per_byte"}),
        (LAUNCH, set(MISSING) - {"registers"}),
    ],
)
def test_missing_sections_are_none_with_a_reason(tmp_path: Path, metrics: list, missing: set[str]) -> None:
    (row,) = read_ncu(write_raw(tmp_path / "ncu.csv", [(GEMM, metrics)]))
    assert set(row["missing"]) == missing
    assert all(row[key] is None for key in missing)


def test_without_throughputs_there_is_no_reading(tmp_path: Path) -> None:
    (row,) = read_ncu(write_raw(tmp_path / "ncu.csv", [(GEMM, LAUNCH)]))
    assert row["roof"] is None
    assert "lacks the throughput" in row["reading"]


def test_what_ncu_could_not_measure_is_missing(tmp_path: Path) -> None:
    metrics = with_values(WHOLE, dram__bytes="n/a", launch__registers="")
    (row,) = read_ncu(write_raw(tmp_path / "ncu.csv", [(GEMM, metrics)]))
    assert row["gb_per_s"] is None and row["registers"] is None and row["flop_per_byte"] is None


def test_reads_and_writes_apart_are_the_bandwidth(tmp_path: Path) -> None:
    apart = [
        ("dram__bytes_read.sum.per_second", "Gbyte/second", "700"),
        ("dram__bytes_write.sum.per_second", "Mbyte/second", "50,000"),
    ]
    (row,) = read_ncu(write_raw(tmp_path / "ncu.csv", [(GEMM, SPEED + apart)]))
    assert row["gb_per_s"] == pytest.approx(750)


def test_a_table_without_messages_and_with_base_units(tmp_path: Path) -> None:
    speed = [(name, "nsecond" if unit == "usecond" else unit, value) for name, unit, value in SPEED]
    (row,) = read_ncu(write_raw(tmp_path / "ncu.csv", [(GEMM, speed)], messages=False))
    assert row["duration_ms"] == pytest.approx(1.25e-3)


def test_launches_of_two_processes_may_share_their_numbers(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "ncu.csv", [(GEMM, WHOLE)])
    path.write_text(path.read_text() + write_raw(tmp_path / "b", [(GEMM, WHOLE)]).read_text().replace('"41"', '"42"'))
    assert len(read_launches(path)) == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no launch had a name that was asked for"),
        ("==PROF== Connected to process 7\n==WARNING== No kernels were profiled.\n", "No kernels were profiled"),
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters",
            "ERR_NVGPUCTRPERM",
        ),
        ("a,b\n1,2\n", "no kernel was profiled"),
    ],
)
def test_no_table_is_an_error_in_the_words_of_ncu(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "ncu.csv"
    path.write_text(text)
    with pytest.raises(ProfileError, match=rf"ncu\.csv cannot be read as a table of Nsight Compute: .*{reason}"):
        read_ncu(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="No such file"):
        read_ncu(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("nsecond", 1e-9),
        ("us", 1e-6),
        ("msecond", 1e-3),
        ("s", 1.0),
        ("second", 1.0),
        ("byte/second", 1.0),
        ("Gbyte/s", 1e9),
        ("Tbyte/second", 1e12),
        ("byte/nsecond", 1e9),
        ("Ghz", 1e9),
        ("cycle/nsecond", 1e9),
        ("Kbyte", 1e3),
        ("inst", 1.0),
        ("%", 1.0),
        ("register/thread", 1.0),
        ("", 1.0),
    ],
)
def test_units(unit: str, expected: float) -> None:
    assert factor(unit) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"), [("1,234,567", 1234567), ("4.0e-05", 4e-5), ("n/a", None), ("", None), ("(256, 1, 1)", None)]
)
def test_numbers(text: str, expected: float | None) -> None:
    assert number(text) == expected
