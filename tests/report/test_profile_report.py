"""What is said of a profile: the sentences, that it fits, and that no name is read as markup."""

from __future__ import annotations

import io
import json
from importlib import resources
from typing import Any

import jsonschema
import pytest
from rich.console import Console

import profile_documents as documents
from servebench.report import profile_words as words
from servebench.report import sections
from servebench.report.profile import print_profile

MAKERS = [documents.decode, documents.without_device, documents.empty, documents.perf, documents.replayed]
SCHEMA = json.loads((resources.files("servebench.analysis") / "summary.schema.json").read_text())


def shown(*windows: dict[str, Any], width: int = 100) -> str:
    out = io.StringIO()
    print_profile(windows, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def plain(text: str) -> str:
    """The text without frames and line breaks."""
    return " ".join(text.translate(str.maketrans("│╭╮╰╯─", "      ")).split())


@pytest.mark.parametrize("make", MAKERS)
def test_the_documents_are_of_the_shape_that_the_analysis_writes(make: Any) -> None:
    jsonschema.validate(make(), {"$ref": "#/$defs/profile_window", "$defs": SCHEMA["$defs"]})


@pytest.mark.parametrize("width", [70, 80, 100, 140, 200])
@pytest.mark.parametrize("make", MAKERS)
def test_it_fits_and_no_figure_is_cut(width: int, make: Any) -> None:
    text = shown(make(), width=width)
    assert max(len(line) for line in text.splitlines()) <= min(width, 140)
    for line in text.splitlines():
        assert not line.rstrip().rstrip("│").rstrip().endswith("…"), line  # only names lose their middle


def test_the_answer_comes_first() -> None:
    text = plain(shown(documents.decode()))
    assert "A decode-only step takes 11.8 ms (p50), 14.2 ms (p95); the device is busy for 60.2 % of 5.00 s." in text
    order = ["A decode-only step", "host_late", "→ try CUDA graphs", "Traffic", "Clock", "Steps", "Device 0", "What if"]
    places = [text.index(word) for word in order]
    assert places == sorted(places)


def test_a_window_says_whether_it_met_its_traffic() -> None:
    text = plain(shown(documents.decode()))
    assert "as meant: 97 % decode only, 2 % mixed, 1 % idle · 24 requests · 7.90 in flight (mean), at most 8" in text
    assert "not as meant: no request was in flight" in plain(shown(documents.empty()))


def test_a_mixed_window_says_what_a_prefill_costs_those_in_decode() -> None:
    text = plain(shown(documents.decode() | {"kind": "mixed", "name": "mixed"}))
    assert "A mixed step takes 48.1 ms (p50), 57.7 ms (p95), a decode-only one 11.8 ms (p50);" in text


def test_a_window_that_missed_its_traffic_says_so_in_the_runs_report() -> None:
    document = documents.decode()
    document["traffic"] |= {"as_meant": False, "reason": "3 of 421 steps had a prefill"}
    lines = sections.profile({"profile": {"windows": [document]}})
    assert [line.style for line in lines][:2] == ["yellow", "yellow"]
    assert lines[1].text == "· not as meant: 3 of 421 steps had a prefill"


def test_an_empty_window_is_said_to_be_empty_and_has_no_figures() -> None:
    text = plain(shown(documents.empty()))
    assert "This window is empty: no step ran between the start and the stop." in text
    assert "Steps" not in text
    assert "busy" not in text


def test_a_server_without_a_device_says_so() -> None:
    text = plain(shown(documents.without_device()))
    assert "no GPU activity: the server runs on the CPU" in text
    assert "aten::mm 9,000 410.2 433.0 31.0 %" in text
    assert "Device" not in text


def test_the_clock_is_told_with_what_bounds_it() -> None:
    assert words.clock(documents.decode()) == ("the session's start as the file states it; off by 212 µs at most", "")
    assert words.clock(documents.empty()) == ("none; how far off is not known: no anchor in the file", "yellow")
    assert "not brought onto the run's clock" in words.clock(documents.perf())[0]
    late = documents.decode()
    late["alignment"] |= {"residual_us": 1500.0, "offset_us": -2500.0}
    text, style = words.clock(late)
    assert text.endswith("moved by -2.5 ms; off by 1.5 ms at most")
    assert style == "yellow"


def test_streams_that_overlap_are_not_added_up() -> None:
    text = plain(shown(documents.decode()))
    assert "busy 3.01 s (60.2 %): compute 2.87 s, communication 120 ms, copies 14.6 ms, fills 100 µs" in text
    assert "their sum, 3.39 s, is not busy time" in text
    single = documents.decode()
    single["devices"][0]["busy"]["summed_ms"] = single["devices"][0]["busy"]["ms"]
    assert "not busy time" not in shown(single)


def test_idle_time_by_length_and_cause() -> None:
    text = plain(shown(documents.decode()))
    assert "< 10 µs 10–100 µs 1–10 ms n 9,120 812 421 ms 21.0 40.1 1,929.7" in text
    assert "host late 430 1,780.0 89.4 % copy or sync 500 160.8 8.1 % no request 1 50.0 2.5 %" in text
    assert "host late: the launch came after the device had run dry" in text
    assert "50.0 ms 1.20 s no request" in text


def test_causes_that_did_not_occur_are_left_out() -> None:
    document = documents.decode()
    document["devices"][0]["idle"]["causes"][0] |= {"n": 0, "ms": 0.0}
    assert "the launch came after" not in shown(document)


@pytest.mark.parametrize(
    ("low", "high", "words_"),
    [
        (0, 10, "< 10 µs"),
        (10, 100, "10–100 µs"),
        (100, 1000, "100 µs–1 ms"),
        (1e4, 1e5, "10–100 ms"),
        (1e6, None, "≥ 1 s"),
    ],
)
def test_size_classes(low: float, high: float | None, words_: str) -> None:
    assert words.size_class({"from_us": low, "to_us": high}) == words_


def test_amdahl_rows() -> None:
    text = plain(shown(documents.decode()))
    assert "share step ms -30 % 2x TPOT ms -30 % 2x ampere_fp16_s16816gemm[tn] 20.0 %" in text
    assert "20.0 % 11.80 11.09 10.62 12.40 11.69 –" in text
    assert "share: of the steps' time" in text


def test_amdahl_rows_without_steps_tell_what_remains() -> None:
    document = documents.decode()
    document["steps"] |= {"n": 0, "kinds": []}
    for each in document["amdahl"]:
        each |= {"step_ms": None, "tpot_ms": None}
    text = plain(shown(document))
    assert "share -30 % 2x ampere_fp16_s16816gemm[tn] 20.0 % 0.940 0.900" in text
    assert "share: of the window" in text


@pytest.mark.parametrize("width", [80, 100, 140])
def test_names_are_never_markup(width: int) -> None:
    text = shown(documents.decode(), width=width)
    assert "[bold]odd[/bold]" in text
    assert "aten::[odd]" in text
    every = json.dumps(documents.decode()).replace("aten::mm", "[red]/[/red] x[/]").replace("the device", "[b]it")
    assert "[red]/[/red] x[/]" in shown(json.loads(every), width=width)


def test_what_is_missing_is_a_dash_and_never_a_zero() -> None:
    document = documents.decode()
    document["devices"][0]["copies"][0] |= {"bytes": None, "gb_per_s": None, "overlapped_share": None}
    document["devices"][0]["graphs"]["replays"] = None
    assert "host to device 840 – 9.60 8.00 – –" in plain(shown(document))


def test_overhead_and_notes() -> None:
    text = plain(shown(documents.decode()))
    assert "the capture made the median ITL 4.2 % longer" in text
    assert "itl p50: 11.90 without, 12.40 with (× 1.04)" in text
    assert "3 events were dropped by the tool" in text


def test_samples_of_processors() -> None:
    text = plain(shown(documents.perf()))
    assert "55 % of 4,321 samples are in at::native::cpublas::gemm<float>[clone] itself." in text
    assert "_PyEval_EvalFrameDefault 7.0 % 90.0 %" in text
    assert "cycles not supported" in text
    assert "of 4,321 samples; flame graph: flame.svg" in text


def test_a_replayed_kernel() -> None:
    text = plain(shown(documents.replayed()))
    assert "The longest replayed kernel, void gemm<float>[tn](int): near the bandwidth roof (90 %)" in text
    assert "void gemm<float>[tn](int) 3 1.25 22 % 91 % 90 % 61 % 3,600" in text
    assert "Clock" not in text
    assert "Steps" not in text


@pytest.mark.parametrize(
    ("passed", "said"),
    [
        (True, "Compute Sanitizer (memcheck) found nothing wrong."),
        (False, "Compute Sanitizer (memcheck) found 7 errors: do not trust the answers."),
        (None, "Compute Sanitizer (memcheck) concludes nothing: the log has no summary."),
    ],
)
def test_what_the_sanitizer_found(passed: bool | None, said: str) -> None:
    text = plain(shown(documents.checked(passed)))
    assert said in text
    assert ("invalid global write 7 error write[k](int *) kernels.cu:12" in text) == (passed is False)


def test_several_devices_are_told_as_a_span() -> None:
    document = documents.decode()
    other = documents.device() | {"device": 1}
    other["busy"]["share"] = 0.55
    document["devices"].append(other)
    document["skew"] = {
        "collectives": 840,
        "p50_us": 12.0,
        "p99_us": 800.0,
        "max_us": 2100.0,
        "last": {"device": 1, "share": 0.9},
    }
    text = plain(shown(document))
    assert "2 devices are busy for 55 % to 60.2 % of 5.00 s" in text
    assert "Device 1" in text
    assert "12 µs (p50), 800 µs (p99), 2.1 ms (max) apart (840 collectives); device 1 is the last in 90 %" in text


def test_of_many_devices_only_the_first_have_all_tables() -> None:
    document = documents.decode()
    document["devices"] = [documents.device() | {"device": number} for number in range(8)]
    found = document["findings"][0]
    document["findings"] = [found | {"sentence": f"Device {number}: idle"} for number in range(8)]
    text = shown(document)
    assert text.count("kernel, ms") == 2
    assert text.count("busy 3.01 s") == 8
    assert "Device 0: idle (7 more like it, in --json)" in plain(text)
    assert "Device 1: idle" not in text


def test_a_narrow_terminal_has_the_codes_of_findings_in_the_text() -> None:
    lines = shown(documents.decode(), width=80).splitlines()
    assert any("host_late  decode step 11.8 ms" in line for line in lines)
    assert any(line.strip("│ ").startswith("→ try CUDA graphs") for line in lines)


def test_the_report_of_a_run_has_it_in_a_few_lines() -> None:
    lines = sections.profile({"profile": {"windows": [documents.decode(), documents.empty()]}})
    assert [line.text for line in lines] == [
        "decode: A decode-only step takes 11.8 ms (p50), 14.2 ms (p95); the device is busy for 60.2 % of 5.00 s.",
        "· decode step 11.8 ms, GPU busy 7.1 ms, 4.2 ms host-late gaps",
        "· overhead of the capture: itl p50 × 1.04",
        "decode: This window is empty: no step ran between the start and the stop.",
        words.MORE,
    ]
    assert [line.style for line in lines] == ["", "", "dim", "yellow", "dim"]
    assert sections.profile({}) == []
    assert sections.profile({"profile": {"windows": []}})[0].text == "no window was captured"
