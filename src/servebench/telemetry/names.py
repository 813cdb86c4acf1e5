"""What the servers call what we sample: one table an engine, from its series to our names.

The first name of each is the current one; the others are older, or of a neighbouring version. Sources: vLLM 0.32
(`vllm/v1/metrics/loggers.py`) and its versions back to 0.6, SGLang (`srt/observability/metrics_collector.py`, before:
`srt/metrics/collector.py`), the metrics page of text-generation-inference's documentation, and our simulated engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GAUGES = ("running", "waiting", "kv_usage")
COUNTERS = (
    "preemptions",
    "prompt_tokens",
    "generation_tokens",
    "cached_tokens",
    "prefix_queries",
    "prefix_hits",
    "requests_success",
    "requests_aborted",
    "rejections",
    "steps",
    "step_tokens_sum",
    "spec_drafted",
    "spec_accepted",
    "estimated_flops",
    "estimated_read_bytes",
    "estimated_write_bytes",
)
TIMES = ("ttft", "itl", "e2e", "queue", "prefill", "decode", "inference")
CANONICAL = (*GAUGES, *COUNTERS, *(f"{time}_{part}" for time in TIMES for part in ("sum", "count")))
"""Times are in seconds, tokens and requests are counts, `kv_usage` is a share (0 to 1)."""


@dataclass(frozen=True, slots=True)
class Series:
    """One of our names, and where it comes from.

    Attributes:
        name: ours.
        sources: the server's names, the current one first; each a sample's whole name.
        where: labels that a sample must have, and the values of which it must have one.
        without: labels, and values that a sample must not have.
        counter: whether it only grows; a restart makes it fall.
        highest: take the highest of several samples of an engine; else their sum.
        always: whether the engine shows it with any settings, so that it is missing where it is not there.
    """

    name: str
    sources: tuple[str, ...]
    where: Mapping[str, frozenset[str]] = field(default_factory=dict)
    without: Mapping[str, frozenset[str]] = field(default_factory=dict)
    counter: bool = True
    highest: bool = False
    always: bool = True


def family(source: str) -> str:
    """What a page's TYPE line calls the histogram that a sample is part of; other names stay as they are."""
    return source.removesuffix("_sum").removesuffix("_count")


@dataclass(frozen=True, slots=True)
class Table:
    """All series of one engine.

    Attributes:
        engine: its name.
        mark: what a page of this engine holds.
        device_label: the label that tells the engines behind one page apart.
        series: ours.
        main: labels that tell copies of the same thing apart, of which only these values count.
    """

    engine: str
    mark: str
    device_label: str
    series: tuple[Series, ...]
    main: Mapping[str, frozenset[str]] = field(default_factory=dict)


def _times(sources: Mapping[str, tuple[str, ...]], always: bool = True) -> tuple[Series, ...]:
    return tuple(
        Series(f"{name}_{part}", tuple(f"{source}_{part}" for source in histograms), always=always)
        for name, histograms in sources.items()
        for part in ("sum", "count")
    )


def _gauge(name: str, *sources: str, highest: bool = False) -> Series:
    return Series(name, sources, counter=False, highest=highest)


_UNFINISHED = {"finished_reason": frozenset({"abort", "error"})}

_VLLM = (
    _gauge("running", "vllm:num_requests_running"),
    _gauge("waiting", "vllm:num_requests_waiting"),
    _gauge("kv_usage", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", highest=True),
    Series("preemptions", ("vllm:num_preemptions_total",)),
    Series("prompt_tokens", ("vllm:prompt_tokens_total",)),
    Series("generation_tokens", ("vllm:generation_tokens_total",)),
    Series("cached_tokens", ("vllm:prompt_tokens_cached_total",), always=False),
    Series("prefix_queries", ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")),
    Series("prefix_hits", ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")),
    Series("requests_success", ("vllm:request_success_total",), without=_UNFINISHED),
    Series("requests_aborted", ("vllm:request_success_total",), where=_UNFINISHED, always=False),
    Series("rejections", ("vllm:admission_rejections_total",), always=False),
    Series("steps", ("vllm:iteration_tokens_total_count",)),
    Series("step_tokens_sum", ("vllm:iteration_tokens_total_sum",)),
    Series("spec_drafted", ("vllm:spec_decode_num_draft_tokens_total",), always=False),
    Series("spec_accepted", ("vllm:spec_decode_num_accepted_tokens_total",), always=False),
    Series("estimated_flops", ("vllm:estimated_flops_per_gpu_total",), always=False),
    Series("estimated_read_bytes", ("vllm:estimated_read_bytes_per_gpu_total",), always=False),
    Series("estimated_write_bytes", ("vllm:estimated_write_bytes_per_gpu_total",), always=False),
    *_times(
        {
            "ttft": ("vllm:time_to_first_token_seconds",),
            "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
            "e2e": ("vllm:e2e_request_latency_seconds",),
            "queue": ("vllm:request_queue_time_seconds",),
            "prefill": ("vllm:request_prefill_time_seconds",),
            "decode": ("vllm:request_decode_time_seconds",),
            "inference": ("vllm:request_inference_time_seconds",),
        }
    ),
)

_SIM = (
    *_VLLM,
    Series("sim_late_s", ("servebench_sim:step_late_seconds_total",)),
    _gauge("sim_late_max_s", "servebench_sim:step_late_seconds_max"),
    Series("sim_overrun_s", ("servebench_sim:overrun_seconds_total",)),
)

_HITS = frozenset({"device_hit", "host_hit", "storage_hit"})

_SGLANG = (
    _gauge("running", "sglang:num_running_reqs"),
    _gauge("waiting", "sglang:num_queue_reqs"),
    _gauge("kv_usage", "sglang:token_usage", highest=True),
    Series("preemptions", ("sglang:num_retracted_requests_total",), always=False),
    Series("prompt_tokens", ("sglang:prompt_tokens_total",)),
    Series("generation_tokens", ("sglang:generation_tokens_total",)),
    Series("cached_tokens", ("sglang:cached_tokens_total",), always=False),
    Series("prefix_queries", ("sglang:prefill_effective_tokens_total",), always=False),
    Series("prefix_hits", ("sglang:prefill_effective_tokens_total",), where={"mode": _HITS}, always=False),
    Series("requests_success", ("sglang:num_requests_total",)),
    Series("requests_aborted", ("sglang:num_aborted_requests_total",), always=False),
    Series("steps", ("sglang:cuda_graph_passes_total",), always=False),
    Series(
        "step_tokens_sum",
        ("sglang:realtime_tokens_total",),
        where={"mode": frozenset({"prefill_compute", "decode"})},
        always=False,
    ),
    Series("estimated_flops", ("sglang:estimated_flops_per_gpu_total",), always=False),
    Series("estimated_read_bytes", ("sglang:estimated_read_bytes_per_gpu_total",), always=False),
    Series("estimated_write_bytes", ("sglang:estimated_write_bytes_per_gpu_total",), always=False),
    *_times(
        {
            "ttft": ("sglang:time_to_first_token_seconds",),
            "itl": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
            "e2e": ("sglang:e2e_request_latency_seconds",),
        }
    ),
    *_times({"queue": ("sglang:queue_time_seconds",)}, always=False),
)

_TGI = (
    _gauge("running", "tgi_batch_current_size"),
    _gauge("waiting", "tgi_queue_size"),
    Series("prompt_tokens", ("tgi_request_input_length_sum",)),
    Series("generation_tokens", ("tgi_request_generated_tokens_sum",)),
    Series("requests_success", ("tgi_request_success", "tgi_request_success_total")),
    Series(
        "rejections",
        ("tgi_request_failure", "tgi_request_failure_total"),
        where={"err": frozenset({"overloaded"})},
        always=False,
    ),
    Series("steps", ("tgi_batch_inference_count", "tgi_batch_inference_count_total")),
    *_times(
        {
            "e2e": ("tgi_request_duration",),
            "queue": ("tgi_request_queue_duration",),
            "inference": ("tgi_request_inference_duration",),
        }
    ),
)

_FIRST = frozenset({"0"})

TABLES = (
    Table("sim", "servebench_sim:", "engine", _SIM),
    Table("vllm", "vllm:", "engine", _VLLM),
    Table(
        "sglang",
        "sglang:",
        "dp_rank",
        _SGLANG,
        # With metrics of all ranks on, each rank repeats the figures; with priorities, "" is the total of all.
        main={"tp_rank": _FIRST, "pp_rank": _FIRST, "moe_ep_rank": _FIRST, "priority": frozenset({""})},
    ),
    Table("tgi", "tgi_", "engine", _TGI),
)
"""In the order in which a page is tried: the simulated engine shows vLLM's names, too."""
