"""The /metrics page: Prometheus text under vLLM's names, and a few of the simulation's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from servebench.engine.sim.engine import LiveEngine
from servebench.engine.sim.metrics import Histogram

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


def metrics_page(engine: LiveEngine, model: str) -> bytes:
    """Render all series of `engine`; times in seconds, lengths in tokens."""
    page = _Page({"engine": "0", "model_name": model})
    _gauges(page, engine)
    _counters(page, engine)
    _histograms(page, engine)
    _own(page, engine)
    return "".join(page.lines).encode()


def _gauges(page: _Page, engine: LiveEngine) -> None:
    scheduler, settings = engine.core.scheduler, engine.core.settings
    page.value("vllm:num_requests_running", "gauge", "Requests in the batch.", len(scheduler.running))
    page.value("vllm:num_requests_waiting", "gauge", "Requests waiting to be scheduled.", len(scheduler.waiting))
    used = scheduler.pool.used / scheduler.pool.count
    page.value("vllm:kv_cache_usage_perc", "gauge", "Share of the KV blocks in use, 0 to 1.", used)
    config = {
        "block_size": settings.block_size,
        "enable_prefix_caching": settings.enable_prefix_caching,
        "num_gpu_blocks": settings.num_blocks,
    }
    page.value("vllm:cache_config_info", "gauge", "The KV cache's configuration.", 1, config)


def _counters(page: _Page, engine: LiveEngine) -> None:
    scheduler, metrics = engine.core.scheduler, engine.core.metrics
    page.value("vllm:num_preemptions_total", "counter", "Requests that lost their KV blocks.", metrics.preemptions)
    page.value("vllm:prompt_tokens_total", "counter", "Prompt tokens processed.", metrics.prompt_tokens)
    page.value("vllm:generation_tokens_total", "counter", "Output tokens made.", metrics.generation_tokens)
    page.value("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up.", scheduler.cache_queries)
    page.value("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found.", scheduler.cache_hits)
    page.declare("vllm:request_success_total", "counter", "Requests ended, by reason.")
    for reason, count in metrics.finished_by.items():
        page.sample("vllm:request_success_total", count, {"finished_reason": reason.value})


def _histograms(page: _Page, engine: LiveEngine) -> None:
    metrics = engine.core.metrics
    for name, text, histogram in (
        ("iteration_tokens_total", "Tokens computed in a step.", metrics.step_tokens),
        ("time_to_first_token_seconds", "Arrival to first token.", metrics.time_to_first_token),
        ("inter_token_latency_seconds", "Gap between consecutive tokens.", metrics.inter_token_latency),
        ("request_time_per_output_token_seconds", "Mean gap of a request.", metrics.time_per_output_token),
        ("e2e_request_latency_seconds", "Arrival to end.", metrics.e2e_latency),
        ("request_queue_time_seconds", "Arrival to first scheduling.", metrics.queue_time),
        ("request_inference_time_seconds", "First scheduling to last token.", metrics.inference_time),
        ("request_prefill_time_seconds", "First scheduling to first token.", metrics.prefill_time),
        ("request_decode_time_seconds", "First to last token.", metrics.decode_time),
        ("request_prompt_tokens", "Prompt tokens of a request.", metrics.request_prompt_tokens),
        ("request_generation_tokens", "Output tokens of a request.", metrics.request_generation_tokens),
        ("request_num_preemptions", "Preemptions of a request.", metrics.request_preemptions),
    ):
        page.histogram(f"vllm:{name}", text, histogram)


def _own(page: _Page, engine: LiveEngine) -> None:
    page.value("servebench_sim:simulated", "gauge", "Always 1: no model runs here.", 1)
    page.value("servebench_sim:step_late_seconds_total", "counter", "Deadline to end of step, summed.", engine.late)
    page.value("servebench_sim:step_late_seconds_max", "gauge", "The largest of these.", engine.late_max)
    page.value("servebench_sim:overrun_seconds_total", "counter", "Lost to a slow simulator.", engine.overrun)


class _Page:
    def __init__(self, labels: Mapping[str, str]) -> None:
        self.lines: list[str] = []
        self._labels = labels

    def declare(self, name: str, kind: str, text: str) -> None:
        self.lines.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")

    def sample(self, name: str, value: float, labels: Mapping[str, object] | None = None) -> None:
        pairs = {**self._labels, **(labels or {})}
        inner = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in pairs.items())
        self.lines.append(f"{name}{{{inner}}} {value!r}\n")

    def value(self, name: str, kind: str, text: str, value: float, labels: Mapping[str, object] | None = None) -> None:
        self.declare(name, kind, text)
        self.sample(name, value, labels)

    def histogram(self, name: str, text: str, histogram: Histogram) -> None:
        self.declare(name, "histogram", text)
        for bound, total in _cumulated(histogram):
            self.sample(f"{name}_bucket", total, {"le": bound})
        self.sample(f"{name}_count", histogram.count)
        self.sample(f"{name}_sum", histogram.sum)


def _cumulated(histogram: Histogram) -> Iterator[tuple[str, int]]:
    total = 0
    for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
        total += count
        yield ("+Inf" if bound is None else repr(float(bound)), total)


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
