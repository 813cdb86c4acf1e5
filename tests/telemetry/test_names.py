"""The tables of names, and the reading of pages with them, against the official parser and real engines' pages."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from servebench.telemetry.exposition import Reader, cache_config, table_for
from servebench.telemetry.names import CANONICAL, TABLES, Table

BY_ENGINE = {table.engine: table for table in TABLES}
VLLM, SGLANG, TGI = BY_ENGINE["vllm"], BY_ENGINE["sglang"], BY_ENGINE["tgi"]


def read(table: Table, page: str | bytes) -> dict[tuple[str, str], float]:
    values, _ = Reader(table).read(page.encode() if isinstance(page, str) else page)
    return values


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.engine)
def test_each_of_our_names_is_mapped_once_and_is_known(table: Table) -> None:
    names = [series.name for series in table.series]
    assert len(names) == len(set(names))
    assert {name for name in names if not name.startswith("sim_")} <= set(CANONICAL)
    assert all(re.fullmatch(r"[a-z_]+[:_][a-z0-9_]+", source) for series in table.series for source in series.sources)


def test_vllm_has_them_all() -> None:
    assert {series.name for series in VLLM.series} == set(CANONICAL)


def registry_of(values: dict[str, list[tuple[dict[str, str], float]]]) -> bytes:
    """A page of an engine as prometheus_client itself writes it."""
    registry = CollectorRegistry()
    families: dict[str, Any] = {}
    for source, samples in values.items():
        base = source.removesuffix("_sum").removesuffix("_count")
        for labels, value in samples:
            if base != source:
                kind: Any = Histogram
            else:
                kind = Counter if source.endswith("_total") else Gauge
            name = base.removesuffix("_total") if kind is Counter else base
            if name not in families:
                families[name] = kind(name, "help", list(labels), registry=registry)
            child = families[name].labels(**labels) if labels else families[name]
            put = {Histogram: "observe", Counter: "inc", Gauge: "set"}[kind]
            getattr(child, put)(value)
    return generate_latest(registry)


label_text = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs"), include_characters='\\"\n{},= '), max_size=12
)
number = st.floats(0, 1e12, allow_nan=False)


@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["stop", "length", "abort", "error"]), st.sampled_from("012"), label_text, number),
        min_size=1,
        max_size=8,
        unique_by=lambda row: row[:3],
    )
)
def test_sums_over_labels_agree_with_the_official_parser(rows: list[tuple[str, str, str, float]]) -> None:
    samples = [({"engine": e, "finished_reason": r, "model_name": m}, v) for r, e, m, v in rows]
    page = registry_of({"vllm:request_success_total": samples})
    expected: dict[tuple[str, str], float] = defaultdict(float)
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            if sample.name == "vllm:request_success_total":
                aborted = sample.labels["finished_reason"] in ("abort", "error")
                device = f"engine-{sample.labels['engine']}"
                expected[device, "requests_aborted" if aborted else "requests_success"] += sample.value
                expected[device, "requests_success" if aborted else "requests_aborted"] += 0.0
    assert read(VLLM, page) == pytest.approx(dict(expected))


def test_every_histogram_of_vllm_gives_its_sum_and_count_of_each_engine() -> None:
    sources = [s.sources[0] for s in VLLM.series if s.sources[0].endswith("_seconds_sum")]
    labels = [{"engine": engine, "model_name": "m"} for engine in "01"]
    page = registry_of({source: [(labels[0], 0.5), (labels[1], 2.5)] for source in sources})
    values = read(VLLM, page)
    assert len(sources) == 7
    for name in ("ttft", "itl", "e2e", "queue", "prefill", "decode", "inference"):
        assert (values["engine-0", f"{name}_sum"], values["engine-0", f"{name}_count"]) == (0.5, 1)
        assert (values["engine-1", f"{name}_sum"], values["engine-1", f"{name}_count"]) == (2.5, 1)


def test_bucket_created_and_similar_names_are_not_taken_for_ours() -> None:
    page = """# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0
vllm:prompt_tokens_created{engine="0"} 1.7e9
vllm:prompt_tokens_by_source_total{engine="0",source="x"} 8.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 3.0
other_vllm:prompt_tokens_total 5.0
"""
    assert read(VLLM, page) == {}


def test_the_form_of_a_line() -> None:
    page = (
        "vllm:num_requests_running 1\n"
        'vllm:num_requests_waiting{engine="0",x="a } b \\" c"}   2e0 1700000000000\n'
        'vllm:kv_cache_usage_perc{engine="0"} NaN\n'
        'vllm:num_preemptions_total{engine="0"} +Inf\n'
        'vllm:prompt_tokens_total{engine="0"} none\n'
    )
    assert read(VLLM, page) == {
        ("engine-0", "running"): 1.0,
        ("engine-0", "waiting"): 2.0,
        ("engine-0", "preemptions"): float("inf"),
    }


def test_a_declared_counter_without_a_sample_has_counted_nothing_but_a_gauge_is_unknown() -> None:
    page = """# TYPE vllm:admission_rejections_total counter
# TYPE vllm:num_requests_running gauge
# TYPE vllm:inter_token_latency_seconds histogram
"""
    assert read(VLLM, page) == {
        ("engine-0", "rejections"): 0.0,
        ("engine-0", "itl_sum"): 0.0,
        ("engine-0", "itl_count"): 0.0,
    }


def test_several_models_of_an_engine_are_summed_but_shares_are_not() -> None:
    page = "".join(
        f'vllm:num_requests_running{{engine="0",model_name="{m}"}} {n}\n'
        f'vllm:kv_cache_usage_perc{{engine="0",model_name="{m}"}} 0.{n}\n'
        for m, n in (("a", 2), ("b", 3))
    )
    assert read(VLLM, page) == {("engine-0", "running"): 5.0, ("engine-0", "kv_usage"): 0.3}


def test_a_collector_that_rewrote_the_colons_is_understood() -> None:
    page = b'vllm_num_requests_running{engine="0"} 4\nvllm_time_to_first_token_seconds_sum{engine="0"} 2\n'
    table = table_for(page)
    assert table is VLLM
    assert read(VLLM, page) == {("engine-0", "running"): 4.0, ("engine-0", "ttft_sum"): 2.0}


def test_sglang_counts_the_main_rank_and_the_total_of_all_priorities() -> None:
    common = 'engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0"'
    page = f"""sglang:num_running_reqs{{{common},tp_rank="0",priority=""}} 5.0
sglang:num_running_reqs{{{common},tp_rank="0",priority="1"}} 3.0
sglang:num_running_reqs{{{common},tp_rank="1",priority=""}} 5.0
sglang:token_usage{{{common},tp_rank="0"}} 0.5
sglang:num_requests_total{{model_name="m"}} 12.0
sglang:prefill_effective_tokens_total{{{common},tp_rank="0",mode="input"}} 70.0
sglang:prefill_effective_tokens_total{{{common},tp_rank="0",mode="device_hit"}} 20.0
sglang:prefill_effective_tokens_total{{{common},tp_rank="0",mode="host_hit"}} 10.0
sglang:realtime_tokens_total{{{common},tp_rank="0",mode="prefill_cache"}} 30.0
sglang:realtime_tokens_total{{{common},tp_rank="0",mode="prefill_compute"}} 70.0
sglang:realtime_tokens_total{{{common},tp_rank="0",mode="decode"}} 8.0
sglang:queue_time_seconds_sum{{{common},tp_rank="0",dp_rank="1"}} 0.5
"""
    assert table_for(page.encode()) is SGLANG
    assert read(SGLANG, page) == {
        ("engine-0", "running"): 5.0,
        ("engine-0", "kv_usage"): 0.5,
        ("engine-0", "requests_success"): 12.0,
        ("engine-0", "prefix_queries"): 100.0,
        ("engine-0", "prefix_hits"): 30.0,
        ("engine-0", "step_tokens_sum"): 78.0,
        ("engine-1", "queue_sum"): 0.5,
    }


def test_tgi_by_its_documented_names() -> None:
    page = """# TYPE tgi_request_count counter
tgi_request_count 9
tgi_request_success 5
tgi_request_failure{err="overloaded"} 3
tgi_request_failure{err="validation"} 1
tgi_batch_current_size 2
tgi_queue_size 6
tgi_batch_inference_count{method="prefill"} 4
tgi_batch_inference_count{method="decode"} 40
tgi_request_queue_duration_sum 1.25
tgi_request_queue_duration_count 5
tgi_request_input_length_sum 500
tgi_request_generated_tokens_sum 80
"""
    assert table_for(page.encode()) is TGI
    assert {name: value for (_, name), value in read(TGI, page).items()} == {
        "running": 2.0,
        "waiting": 6.0,
        "requests_success": 5.0,
        "rejections": 3.0,
        "steps": 44.0,
        "queue_sum": 1.25,
        "queue_count": 5.0,
        "prompt_tokens": 500.0,
        "generation_tokens": 80.0,
    }


def test_the_engine_is_told_from_the_page_and_a_fitting_hint_decides() -> None:
    both = b"# HELP vllm:x y\nvllm:x 1\nsglang:y 2\n"
    assert table_for(b"process_cpu_seconds_total 1\n") is None
    assert table_for(both) is VLLM
    assert table_for(both, "sglang") is SGLANG
    assert table_for(b"tgi_queue_size 1\n", "vllm") is TGI
    assert table_for(b"vllm:x 1\nservebench_sim:simulated 1\n", "unknown") is BY_ENGINE["sim"]


def test_the_start_of_the_process_is_read() -> None:
    _, start = Reader(VLLM).read(b"process_start_time_seconds 1.7960214226e+09\nvllm:num_requests_running 0\n")
    assert start == 1796021422.6


def test_the_configuration_of_the_cache() -> None:
    page = (
        b'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",'
        b'gpu_memory_utilization="0.9",kv_cache_size_tokens="None",num_gpu_blocks="4096",secret="x"} 1.0\n'
    )
    assert cache_config(page) == {
        "block_size": 16,
        "blocks": 4096,
        "tokens": None,
        "dtype": "auto",
        "prefix_caching": True,
        "memory_utilization": 0.9,
    }
    assert cache_config(b"vllm:num_requests_running 0\n") == {}
