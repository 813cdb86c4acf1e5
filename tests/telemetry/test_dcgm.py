"""A DCGM exporter's page under our names and in our units; what it refuses, repeats or garbles."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_rig import pages
from servebench.telemetry.dcgm import FIELDS, is_dcgm, read_page
from servebench.telemetry.dcgm_source import DcgmFeed
from servebench.telemetry.remote_client import Link
from servebench.telemetry.remote_source import RemoteSource
from servebench.telemetry.source import SampleFailed, SourceAbsent, SourceLoop

LABELS = (
    'gpu="0",UUID="GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52",pci_bus_id="00000000:0F:00.0",device="nvidia0",'
    'modelName="NVIDIA H100 80GB HBM3",Hostname="node-a.example.org",DCGM_FI_DRIVER_VERSION="550.90.07"'
)


def page(*lines: str, labels: str = LABELS) -> str:
    """What an exporter writes: HELP and TYPE, then the line, for each `NAME VALUE`."""
    text = "# HELP go_goroutines Number of goroutines.\n# TYPE go_goroutines gauge\ngo_goroutines 31\n"
    for line in lines:
        name, value = line.split(" ", 1)
        text += f"# HELP {name} Some text (in W).\n# TYPE {name} gauge\n{name}{{{labels}}} {value}\n"
    return text


WHOLE = page(
    "DCGM_FI_DEV_SM_CLOCK 1980",
    "DCGM_FI_DEV_MEM_CLOCK 2619",
    "DCGM_FI_DEV_GPU_TEMP 42",
    "DCGM_FI_DEV_MEMORY_TEMP 50",
    "DCGM_FI_DEV_POWER_USAGE 312.417000",
    "DCGM_FI_DEV_POWER_USAGE_INSTANT 351.250000",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION 322218543210",
    "DCGM_FI_DEV_GPU_UTIL 97",
    "DCGM_FI_DEV_MEM_COPY_UTIL 33",
    "DCGM_FI_DEV_XID_ERRORS 0",
    "DCGM_FI_DEV_FB_FREE 1024",
    "DCGM_FI_DEV_FB_USED 79872",
    "DCGM_FI_DEV_FB_RESERVED 663",
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS 4",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS 1",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS 2",
    "DCGM_FI_PROF_SM_ACTIVE 0.871234",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE 0.412345",
    "DCGM_FI_PROF_DRAM_ACTIVE 0.654321",
    "DCGM_FI_PROF_PCIE_TX_BYTES 2500000",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS 0",
)


def values(text: str) -> dict[str, float | None]:
    return {name: value for _, name, value, *_ in read_page(text).readings}


def test_a_whole_page() -> None:
    result = read_page(WHOLE)
    assert {device for device, *_ in result.readings} == {"node-a/gpu-0"}
    assert values(WHOLE) == {
        "clock_sm_mhz": 1980,
        "clock_mem_mhz": 2619,
        "temp_gpu_c": 42,
        "temp_mem_c": 50,
        "power_avg_w": 312.417,
        "power_w": 351.25,
        "energy_j": pytest.approx(322218543.21),
        "util_gpu": 97,
        "util_mem": 33,
        "xid": 0,
        "mem_used_bytes": 79872 * 1024**2,
        "mem_total_bytes": (1024 + 79872 + 663) * 1024**2,
        "clock_reasons": 4,
        "remapped_rows": 3,
        "gpm_sm": 0.871234,
        "gpm_tensor": 0.412345,
        "gpm_dram": 0.654321,
        "pcie_tx_kbps": 2500,
    }
    assert result.unmapped == {"DEV_VGPU_LICENSE_STATUS"}
    assert (result.malformed, result.refused) == (0, {})
    assert result.devices["node-a/gpu-0"] == {
        "device": "node-a/gpu-0",
        "index": 0,
        "uuid": "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52",
        "name": "NVIDIA H100 80GB HBM3",
        "driver": "550.90.07",
        "host": "node-a",
        "mig": None,
    }


def test_the_names_since_4_6() -> None:
    text = page(
        "DCGM_FI_DEV_BOARD_POWER_WATTS 300",
        "DCGM_FI_DEV_BOARD_POWER_RAW_WATTS 310",
        "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL 5000",
        "DCGM_FI_DEV_GPU_TEMP_CELSIUS 42",
        "DCGM_FI_DEV_SM_CLOCK_HERTZ 1980000000",
        "DCGM_FI_DEV_FB_USED_BYTES 1048576",
        "DCGM_FI_DEV_XID_ERROR 31",
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS 8",
        "DCGM_FI_PROF_TENSOR_UTIL_RATIO 0.5",
        "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL 4",
        "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL 0",
    )
    assert values(text) == {
        "power_avg_w": 300,
        "power_w": 310,
        "energy_j": 5000,
        "temp_gpu_c": 42,
        "clock_sm_mhz": pytest.approx(1980),
        "mem_used_bytes": 1048576,
        "xid": 31,
        "clock_reasons": 8,
        "gpm_tensor": 0.5,
        "remapped_rows": 4,
    }


@pytest.mark.parametrize(
    ("blank", "why"),
    [
        ("9223372036854775792", "no value yet"),
        ("9223372036854775794", "not supported"),
        ("140737488355328.000000", "no value yet"),
        ("140737488355331", "no permission"),
        ("140737488355340", "no value"),
        ("NaN", "no value"),
        ("+Inf", "no value"),
    ],
)
def test_dcgm_s_blanks_are_nulls_with_their_reason(blank: str, why: str) -> None:
    result = read_page(page(f"DCGM_FI_DEV_POWER_USAGE {blank}", "DCGM_FI_DEV_GPU_TEMP 40"))
    assert ("node-a/gpu-0", "power_avg_w", None) in result.readings
    assert ("node-a/gpu-0", "temp_gpu_c", 40) in result.readings
    assert result.refused == {"power_avg_w": why}


def test_a_sum_needs_all_its_parts() -> None:
    assert "remapped_rows" not in values(page("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS 2"))
    whole = values(page("DCGM_FI_DEV_FB_USED 1", "DCGM_FI_DEV_FB_FREE 2"))
    assert "mem_total_bytes" not in whole
    stated = page(
        "DCGM_FI_DEV_FB_TOTAL 9", "DCGM_FI_DEV_FB_USED 1", "DCGM_FI_DEV_FB_FREE 2", "DCGM_FI_DEV_FB_RESERVED 3"
    )
    assert values(stated)["mem_total_bytes"] == 9 * 1024**2


def test_gpus_mig_slices_and_pods_are_told_apart() -> None:
    text = "".join(
        f'DCGM_FI_DEV_GPU_TEMP{{gpu="{gpu}",UUID="u{gpu}",Hostname="n"{more}}} {value}\n'
        for gpu, more, value in [
            (0, "", 40),
            (1, ',GPU_I_ID="1",GPU_I_PROFILE="1g.10gb"', 41),
            (1, ',GPU_I_ID="2",GPU_I_PROFILE="1g.10gb"', 42),
            (0, ',pod="a}b,c",namespace="x\\"y"', 43),  # the same GPU again, for a pod: the first counts
        ]
    )
    result = read_page(text)
    assert [(device, value) for device, _, value, *_ in result.readings] == [
        ("n/gpu-0", 40),
        ("n/gpu-1/mig-1", 41),
        ("n/gpu-1/mig-2", 42),
    ]
    assert result.devices["n/gpu-1/mig-2"]["mig"] == "1g.10gb"


@pytest.mark.parametrize(
    ("host", "shown"), [("10.0.0.7", "10.0.0.7"), ("a b/c", "a_b_c"), ("", "dcgm"), ("n1.cluster.local", "n1")]
)
def test_a_host_s_name(host: str, shown: str) -> None:
    result = read_page(f'DCGM_FI_DEV_GPU_TEMP{{gpu="3",Hostname="{host}"}} 40\n')
    assert result.readings == [(f"{shown}/gpu-3", "temp_gpu_c", 40)]


@pytest.mark.parametrize(
    "line",
    [
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"} hot',
        'DCGM_FI_DEV_GPU_TEMP{gpu="0" 40',
        "DCGM_FI_DEV_GPU_TEMP 40",
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"}',
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 40 41 42',
    ],
)
def test_a_broken_line_costs_itself_only(line: str) -> None:
    result = read_page(f"{line}\n{page('DCGM_FI_DEV_SM_CLOCK 1980')}")
    assert result.readings == [("node-a/gpu-0", "clock_sm_mhz", 1980)]
    assert result.malformed == 1


def test_a_time_stamp_after_the_value_is_no_part_of_it() -> None:
    assert values(page("DCGM_FI_DEV_GPU_TEMP 40 1790000000000")) == {"temp_gpu_c": 40}


@given(st.text(alphabet='DCGM_FI{}="\\ \n0123,.eNa', max_size=200))
def test_no_page_is_too_odd(text: str) -> None:
    read_page("DCGM_FI_" + text)


def test_no_two_fields_share_a_name_and_disagree_on_its_unit() -> None:
    assert FIELDS["DEV_FB_USED"][0] == FIELDS["DEV_FB_USED_BYTES"][0]
    assert FIELDS["DEV_TOTAL_ENERGY_CONSUMPTION"][1] * 1000 == FIELDS["DEV_GPU_ENERGY_JOULES_TOTAL"][1]


def test_a_page_is_told_by_its_content() -> None:
    assert is_dcgm(WHOLE)
    assert not is_dcgm("# HELP DCGM_FI_DEV_GPU_TEMP x\nvllm:num_requests_running 3\n")


# As a source.


def showing(texts: list[str]) -> Callable[[], tuple[int, bytes]]:
    """Answers with each text in turn, and with the last one from then on."""
    return lambda: (200, (texts.pop(0) if len(texts) > 1 else texts[0]).encode())


@pytest.mark.parametrize("path", ["/", "/metrics"])
def test_an_exporter_is_found_at_its_page_and_above_it(path: str) -> None:
    with pages({path: (200, WHOLE.encode())}) as url:
        source = RemoteSource(url)
        source.open()
        assert ("node-a/gpu-0", "power_w", 351.25) in source.sample()
        facts = source.facts()
        source.close()
    assert (facts["kind"], facts["url"]) == ("dcgm", url)
    assert [device["uuid"][:8] for device in facts["devices"]] == ["GPU-604a"]
    assert facts["offset"]["offset_ms"] is None
    json.dumps(facts, allow_nan=False)


def test_a_page_that_says_nothing_new_is_no_sample_but_for_the_last() -> None:
    first, second = page("DCGM_FI_DEV_GPU_TEMP 40"), page("DCGM_FI_DEV_GPU_TEMP 41")
    other = first.replace("go_goroutines 31", "go_goroutines 32")
    answers: dict[str, Any] = {"/metrics": showing([first, other, second, second, second])}
    with pages(answers) as url, closing(Link(url)) as link:
        feed = DcgmFeed(link, "/metrics")
        taken = [list(feed.sample()) for _ in range(4)]
        last = list(feed.final_sample())
    assert [[value for _, _, value in readings] for readings in taken] == [[40], [], [41], []]
    assert last == [("node-a/gpu-0", "temp_gpu_c", 41)]
    assert (feed.facts()["scrapes"], feed.facts()["fresh"]) == (5, 2)


def test_a_series_that_disappears_becomes_null() -> None:
    both = page("DCGM_FI_DEV_GPU_TEMP 40", "DCGM_FI_DEV_SM_CLOCK 1980")
    answers: dict[str, Any] = {"/metrics": showing([both, page("DCGM_FI_DEV_GPU_TEMP 41")])}
    with pages(answers) as url, closing(Link(url)) as link:
        feed = DcgmFeed(link, "/metrics")
        feed.sample()
        assert feed.sample() == [("node-a/gpu-0", "temp_gpu_c", 41), ("node-a/gpu-0", "clock_sm_mhz", None)]


@pytest.mark.parametrize(
    ("answer", "words"),
    [((500, b""), "answered 500"), ((200, b"<html>"), "no field of DCGM"), ((200, b""), "no field of DCGM")],
)
def test_an_answer_that_is_no_page_gives_nulls_with_its_reason(answer: tuple[int, bytes], words: str) -> None:
    answers: dict[str, Any] = {"/metrics": (200, WHOLE.encode())}
    taken: list[Any] = []
    with pages(answers) as url:
        loop = SourceLoop("remote", lambda: RemoteSource(url, hz=20), lambda *each: taken.append(each))
        loop.start()
        assert loop.baselined.wait(5)
        answers["/metrics"] = answer
        loop.stop()
        assert loop.join(5)
    report = loop.report()
    assert any(words in reason for reason in report["failures"])
    assert ("node-a/gpu-0", "power_w", None) in taken[-1][2]
    assert ("node-a/gpu-0", "power_w", 351.25) in taken[0][2]


def test_an_exporter_that_wants_a_token_is_absent() -> None:
    with pages({"/facts": (401, b"")}) as url, pytest.raises(SourceAbsent, match="it wants a token"):
        RemoteSource(url).open()


def test_a_page_without_our_fields_is_a_failed_sample() -> None:
    answers: dict[str, Any] = {"/metrics": (200, page("DCGM_FI_DEV_VGPU_LICENSE_STATUS 0").encode())}
    with pages(answers) as url, closing(Link(url)) as link, pytest.raises(SampleFailed, match="no field"):
        DcgmFeed(link, "/metrics").sample()
