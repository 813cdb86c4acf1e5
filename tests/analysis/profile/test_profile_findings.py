"""Findings: each told when its figures pass the limit, silent below it, and never without figures."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

import profile_documents as documents
from servebench.analysis.profile.answers import Label, blank
from servebench.analysis.profile.findings import findings

Document = dict[str, Any]


def quiet() -> Document:
    """A decode window of a GPU server in which nothing stands out."""
    document = copy.deepcopy(documents.decode())
    device = document["devices"][0]
    device["busy"] |= {"ms": 4500.0, "share": 0.9}
    device["idle"] |= {"ms": 500.0, "share": 0.1, "causes": []}
    device["tiny"]["share"] = 0.1
    device["communication"] = None
    return document | {"amdahl": [], "overhead": None, "steps": document["steps"] | {"processes": 1}}


def cpu() -> Document:
    document = quiet() | {"devices": [], "no_device": "no GPU activity"}
    rows = [
        {"name": "aten::copy_", "n": 500, "self_ms": 600.0, "total_ms": 600.0, "share": 0.12},
        {"name": "aten::add", "n": 500, "self_ms": 3500.0, "total_ms": 3500.0, "share": 0.7},
    ]
    document["operators"] = {
        "process": 1,
        "thread": 2,
        "within_ms": 5000.0,
        "rows": rows,
        "names_n": 2,
        "self_ms": 4100.0,
    }
    return document


def told(document: Document) -> dict[str, Document]:
    return {found["code"]: found for found in findings(document)}


def cause(name: str, ms: float, n: int = 400) -> Document:
    return {"cause": name, "n": n, "ms": ms, "short_n": 0, "short_ms": 0.0, "text": ""}


def gaps(name: str, ms: float) -> Document:
    document = quiet()
    document["devices"][0]["idle"]["causes"] = [cause(name, ms)]
    return document


def idle_client(share: float) -> Document:
    document = quiet()
    document["traffic"]["shares"] |= {"idle": share, "decode_only": 1 - share}
    return document


def busy(share: float, away: float = 0.0) -> Document:
    document = idle_client(away)
    document["devices"][0]["busy"]["share"] = share
    return document


def captured(ratio: float) -> Document:
    rows = [{"metric": "itl p50", "plain": 10.0, "captured": 10 * ratio, "ratio": ratio, "n": [9, 9], "reason": None}]
    return quiet() | {"overhead": {"rows": rows, "text": ""}}


def missed(met: bool | None) -> Document:
    document = quiet()
    document["traffic"] |= {"as_meant": met, "reason": "3 of 9 steps had requests in prefill, by their names"}
    return document


def mixed(ms: float, n: int = 50) -> Document:
    document = quiet()
    row = document["steps"]["kinds"][1]
    row |= {"n": n, "context_tokens_mean": 900.0, "period": {"n": n, "mean": ms, "p50": ms, "p95": ms, "max": ms}}
    return document


def communicating(ms: float) -> Document:
    document = quiet()
    document["devices"][0]["communication"] = {"ms": 900.0, "exposed_ms": ms, "hidden_share": 0.5, "kernels": []}
    return document


def skewed(us: float) -> Document:
    skew = {"collectives": 90, "p50_us": us, "p99_us": 9 * us, "max_us": 9 * us, "last": {"device": 3, "share": 0.8}}
    return quiet() | {"skew": skew}


def copying(ms: float) -> Document:
    document = quiet()
    document["devices"][0]["copies"][0]["exposed_ms"] = ms
    return document


def tiny(share: float) -> Document:
    document = quiet()
    document["devices"][0]["tiny"] |= {"share": share, "n": 9000}
    return document


def hot_kernel(share: float) -> Document:
    document = quiet()
    document["amdahl"] = [
        {"what": "gemm", "where": "device", "share": share, "change": "2x", "factor": 0.5,
         "step_ratio": 1 - share / 2, "step_ms": [10.0, 10 - 5 * share], "tpot_ms": None}
    ]  # fmt: skip
    return document


def operator(share: float) -> Document:
    document = cpu()
    document["operators"]["rows"] = [
        {"name": "aten::addmm", "n": 9, "self_ms": 5000 * share, "total_ms": 9.0, "share": share},
        {"name": "aten::add", "n": 9, "self_ms": 1.0, "total_ms": 9.0, "share": 0.9 - share},
    ]
    return document


def outside(share: float) -> Document:
    document = cpu()
    document["operators"]["self_ms"] = 5000 * (1 - share)
    return document


def calling(name: str, ms: float) -> Document:
    return quiet() | {"system": [{"name": name, "n": 70, "ms": ms}]}


def sampled(name: str, share: float) -> Document:
    row = {"name": name, "share": share, "self_share": share, "module": "libtorch.so"}
    return quiet() | {"hot": {"samples": 1000, "functions": [row], "counters": None, "flame_graph": None}}


def replayed(roof: str | None) -> Document:
    percents = dict.fromkeys(("memory_percent", "compute_percent", "dram_percent", "occupancy_percent"), 50.0)
    row = {"kernel": "gemm", "roof": roof, "reading": "near the bandwidth roof: it moves bytes", **percents}
    return quiet() | {"kernel_replay": {"kernel": "gemm", "rows": [row]}}


def checked(passed: bool | None) -> Document:
    row = {"kind": "invalid global read", "kernel": "gemm", "count": 3}
    result = {"check": "memcheck", "passed": passed, "errors": 3, "leaked_bytes": None, "findings": [row]}
    return quiet() | {"sanitizer": result}


CASES: list[tuple[str, Document, Document, str]] = [
    ("traffic_missed", missed(False), missed(True), "3 of 9 steps had requests in prefill"),
    ("client_idle", idle_client(0.34), idle_client(0.09), "For 34 % of the window no request was in flight"),
    ("capture_overhead", captured(1.4), captured(1.05), "itl p50 1.40 times as long (10 ms without, 14 ms with)"),
    (
        "host_late",
        gaps("host_late", 1768.2),
        gaps("host_late", 249.0),
        "decode step 11.8 ms, device busy 7.08 ms, 4.2 ms a step of idle time in 400 gaps",
    ),
    ("dependency", gaps("dependency", 421.0), gaps("dependency", 20.0), "1 ms a step of idle time in 400 gaps"),
    ("copy_or_sync", gaps("copy_or_sync", 421.0), gaps("copy_or_sync", 20.0), "at a copy or while the host waited"),
    ("low_busy", busy(0.3), busy(0.6), "worked for 30 % of the window"),
    ("low_busy", busy(0.3, away=0.2), busy(0.3, away=0.5), "37.5 % of the time with requests in flight"),
    ("interference", mixed(23.6), mixed(14.0), "takes 23.6 ms, a decode step 11.8 ms"),
    ("interference", mixed(23.6), mixed(23.6, n=2), "waits 11.8 ms more"),
    ("exposed_communication", communicating(500.0), communicating(200.0), "10 % of the window"),
    ("rank_skew", skewed(700.0), skewed(400.0), "in 80 % of 90 device 3 is the last"),
    ("exposed_copies", copying(500.0), copying(200.0), "host to device (840 copies"),
    ("tiny_kernels", tiny(0.7), tiny(0.4), "70 % of the kernels (9000) are shorter than 10 µs"),
    ("hot_kernel", hot_kernel(0.3), hot_kernel(0.1), "from 10 ms to 8.5 ms"),
    ("hot_operator", operator(0.6), operator(0.1), "aten::addmm itself takes 60 %"),
    ("outside_operators", outside(0.4), outside(0.2), "40 % of the time of the steps is in no operator"),
    ("thread_waits", sampled("gomp_team_barrier_wait_end", 0.3), sampled("do_spin", 0.05), "30 % of the samples"),
    ("system_calls", calling("mmap", 600.0), calling("mmap", 100.0), "mmap took 600 ms in 70 calls"),
    ("system_calls", calling("write", 600.0), calling("pthread_cond_wait", 4000.0), "write took 600 ms"),
    ("roofline", replayed("bandwidth"), replayed(None), "gemm: near the bandwidth roof: it moves bytes."),
    ("sanitizer", checked(False), checked(None), "found 3 errors, first: invalid global read in gemm"),
    ("hot_function", sampled("gemm", 0.4), sampled("gemm", 0.1), "40 % of 1000 samples are in gemm (libtorch.so)"),
]


@pytest.mark.parametrize(
    ("code", "loud", "silent", "text"), CASES, ids=lambda each: each if isinstance(each, str) else ""
)
def test_each_rule(code: str, loud: Document, silent: Document, text: str) -> None:
    found = told(loud)[code]
    assert text in found["sentence"]
    assert found["evidence"]
    assert found["next"]
    assert code not in told(silent)


def test_nothing_is_told_where_nothing_stands_out() -> None:
    assert findings(quiet()) == []
    assert findings(blank(Label("decode", "decode"), "nothing was captured")) == []


def test_a_document_of_each_kind_has_sentences_of_plain_words() -> None:
    for make in (documents.decode, documents.without_device, documents.perf, documents.empty, cpu, quiet):
        document = copy.deepcopy(make())
        document["steps"].setdefault("processes", 1)
        if document["operators"]:
            document["operators"] |= {"within_ms": 900.0, "self_ms": 500.0}
        for found in findings(document):
            assert not re.search(r"None|nan|_only|\{|\}", found["sentence"] + found["next"]), found
            assert found["sentence"].endswith((".", "!"))


def test_what_a_device_takes_from_one_kernel_to_the_next_is_no_dependency() -> None:
    document = gaps("dependency", 421.0)
    document["devices"][0]["idle"]["causes"][0] |= {"short_n": 390, "short_ms": 20.0}
    assert "in 10 gaps" in told(document)["dependency"]["sentence"]
    document["devices"][0]["idle"]["causes"][0]["short_ms"] = 200.0
    assert "dependency" not in told(document)


def test_a_smaller_budget_is_the_experiment_against_interference() -> None:
    found = told(mixed(40.0))["interference"]
    assert found["next"].startswith("`servebench ab SCENARIO --vary vllm.max-num-batched-tokens=1024,256`")
    assert found["evidence"]["ratio"] == pytest.approx(40 / 11.8, abs=1e-6)
    short = mixed(40.0)
    short["steps"]["kinds"][1]["context_tokens_mean"] = 71.0
    assert "half the rate" in told(short)["interference"]["next"]


def test_time_a_step_is_that_of_one_process() -> None:
    document = gaps("host_late", 1768.2)
    document["steps"] |= {"n": 842, "processes": 2}
    assert told(document)["host_late"]["evidence"]["ms_per_step"] == pytest.approx(4.2)


def test_without_steps_gaps_are_told_in_all() -> None:
    document = gaps("host_late", 1000.0)
    document["steps"] = {"found_by": "none", "reason": "", "n": 0, "processes": 0, "truncated": 0, "kinds": []}
    assert "Device 0: 1000 ms of idle time in 400 gaps" in told(document)["host_late"]["sentence"]


def test_cuda_graphs_are_no_advice_to_who_has_them() -> None:
    without = gaps("host_late", 1000.0)
    without["devices"][0]["graphs"]["replays"] = 0
    assert "CUDA graphs" in told(without)["host_late"]["next"]
    assert "CUDA graphs" not in told(gaps("host_late", 1000.0))["host_late"]["next"]


def test_operators_say_nothing_beside_a_device() -> None:
    document = operator(0.6) | {"devices": quiet()["devices"]}
    assert not {"hot_operator", "outside_operators"} & told(document).keys()


def test_experiments_of_the_operator_fit_it() -> None:
    assert "OMP_NUM_THREADS" in told(operator(0.6))["hot_operator"]["next"]
    document = operator(0.6)
    document["operators"]["rows"][0]["name"] = "_C::cpu_attention_with_kv_cache"
    assert "half the length" in told(document)["hot_operator"]["next"]
    document["operators"]["rows"][0]["name"] = "aten::copy_"
    assert "enforce-eager" in told(document)["hot_operator"]["next"]
