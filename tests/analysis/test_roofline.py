"""Floors by the model's shape and the GPU's peaks: an estimate that can be computed on paper."""

from typing import Any

import pytest

from handmade import Sent, facts_of, handmade, sample
from servebench.analysis import roofline
from servebench.analysis.gpu_peaks import peaks_of, stated_peaks
from servebench.analysis.model_shape import ModelShape, UnknownShapeError
from servebench.testing.synthetic import SyntheticRun

# prefill only 0-100, decode only 100-500 (one request), mixed 500-600, decode only 600-700 (two)
PAIR = [Sent(0, [100, 300, 500, 700], input=1000), Sent(500, [600, 700], input=600, cached=200)]
LLAMA = {
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "parameters": 8e9,
    "dtype": "bfloat16",
}


def served(
    model: dict[str, Any] | None = None, name: str | None = "NVIDIA H200", gpus: int = 1, **identity: Any
) -> SyntheticRun:
    devices = [{"index": k, "name": name, "uuid": f"GPU-{k}", "server_uses": True} for k in range(gpus)]
    telemetry = {"sources": {"nvml": {"state": "sampled", "devices": devices}}}
    run = handmade(PAIR, telemetry=telemetry, server_identity={"model": LLAMA if model is None else model, **identity})
    for k in range(gpus):
        sample(run, "nvml", f"gpu-{k}", "power_w", [(ms, 300.0) for ms in range(0, 1001, 50)])
    return run


def section(run: SyntheticRun, quiet_itl_ms: float | None = 10.0) -> dict[str, Any]:
    return roofline.describe(*facts_of(run), quiet_itl_ms)


def test_the_floor_of_a_decode_step_by_hand() -> None:
    found = section(served())
    decode = found["decode"]
    sequences = (400 * 1 + 100 * 2) / 500
    context = (4 * (1000 + 2) + 2 * (600 + 1)) / 6
    kv = sequences * context * 2 * 32 * 8 * 128 * 2
    assert decode["sequences"] == pytest.approx(sequences)
    assert decode["context_tokens"] == pytest.approx(context)
    assert (decode["weight_bytes"], decode["kv_bytes"]) == pytest.approx((16e9, kv))
    assert decode["floor_ms"] == pytest.approx(1e3 * (16e9 + kv) / 4.8e12, rel=1e-6)
    assert decode["achieved_share"] == pytest.approx(decode["floor_ms"] / 10, abs=1e-6)
    assert (found["gpu"], found["gpus"], found["kind"], found["estimate"]) == ("NVIDIA H200", 1, "bf16", True)
    assert "bandwidth" in decode["formula"]


def test_the_floor_of_prefill_by_hand() -> None:
    prefill = section(served())["prefill"]
    flops = sum(2 * 8e9 * n + 2 * 32 * 32 * 128 * n**2 for n in (1000, 400))  # 200 of 600 were cached
    assert prefill["flops"] == pytest.approx(flops)
    assert prefill["floor_ms"] == pytest.approx(1e3 * flops / 989.5e12, rel=1e-5)
    assert prefill["measured_ms"] == 200
    assert prefill["achieved_share"] == pytest.approx(prefill["floor_ms"] / 200, abs=1e-6)
    assert (prefill["tokens"], prefill["prompts"]) == (1400, 2)


def test_gpus_work_together() -> None:
    one, two = section(served()), section(served(gpus=2))
    assert two["gpus"] == 2
    for part in ("decode", "prefill"):
        assert two[part]["floor_ms"] == pytest.approx(one[part]["floor_ms"] / 2, rel=1e-5)


def test_the_server_may_estimate_by_itself() -> None:
    run = served()
    sample(run, "server", "engine-0", "estimated_flops", [(-100, 0.0), (0, 0.0), (1000, 98.95e12), (1100, 98.95e12)])
    sample(run, "server", "engine-0", "estimated_read_bytes", [(-100, 0.0), (0, 0.0), (1000, 1.2e12), (1100, 1.2e12)])
    found = section(run)["server"]
    assert (found["flops_share"], found["bandwidth_share"]) == pytest.approx((0.1, 0.25))
    assert "mfu" in section(served())["server"]["reason"]


def test_counters_of_an_estimate_that_was_not_switched_on_are_no_estimate() -> None:
    run = served()
    for name in ("estimated_flops", "estimated_read_bytes"):
        sample(run, "server", "engine-0", name, [(-100, 0.0), (1100, 0.0)])
    found = section(run)["server"]
    assert (found["flops_per_s"], found["flops_share"]) == (None, None)
    assert "mfu" in found["reason"]


def test_peaks_may_be_stated() -> None:
    run = served(name="Some GPU", gpu_peaks={"bandwidth": 1e12, "flops": {"bf16": 1e14}, "source": "mine"})
    found = section(run)
    assert (found["bandwidth_bytes_per_s"], found["peak_flops"], found["source"]) == (1e12, 1e14, "mine")
    assert found["decode"]["floor_ms"] == pytest.approx(1e3 * (16e9 + found["decode"]["kv_bytes"]) / 1e12, rel=1e-6)
    assert stated_peaks({"bandwidth": 5}).source == "the manifest"


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (served(model={}), "the model's shape is not known"),
        (
            served(model={}, absent={"model": "no model runs here"}),
            "the model's shape is not known: no model runs here",
        ),
        (served(model=LLAMA | {"parameters": None}), "the model's parameters not known"),
        (
            served(model=LLAMA | {"parameters": None, "parameters_reason": "it has layers of another kind"}),
            "the model's parameters not known: it has layers of another kind",
        ),
        (served(model=LLAMA | {"dtype": "posit8"}), 'the number format "posit8" is not known'),
        (served(name="NVIDIA GeForce RTX 5090"), "the peak figures of NVIDIA GeForce RTX 5090 are not known"),
        (served(gpus=0), "no GPU was sampled: not sampled in this run"),
        (handmade(PAIR), "the model's shape is not known"),
    ],
)
def test_what_is_missing_is_said(run: SyntheticRun, reason: str) -> None:
    found = section(run)
    assert found["reason"] == reason
    assert (found["decode"], found["prefill"], found["server"]) == (None, None, None)


def test_without_decode_only_time_there_is_no_floor() -> None:
    decode = section(served(), None)["decode"]
    assert (decode["floor_ms"], decode["reason"]) == (None, "there was no time in which requests only decoded")


@pytest.mark.parametrize(
    ("name", "bandwidth", "bf16"),
    [
        ("NVIDIA H100 80GB HBM3", 3.35e12, 989.5e12),
        ("NVIDIA H100 PCIe", 2.0e12, 756.5e12),
        ("NVIDIA H100 NVL", 3.9e12, 835.5e12),
        ("NVIDIA H200", 4.8e12, 989.5e12),
        ("NVIDIA H200 NVL", 4.8e12, 835.5e12),
        ("NVIDIA A100-SXM4-40GB", 1.555e12, 312e12),
        ("NVIDIA A100-SXM4-80GB", 2.039e12, 312e12),
        ("NVIDIA A100 80GB PCIe", 1.935e12, 312e12),
        ("NVIDIA A100-PCIE-40GB", 1.555e12, 312e12),
        ("NVIDIA L4", 0.3e12, 121e12),
        ("NVIDIA L40S", 0.864e12, 362.05e12),
        ("NVIDIA B200", 8e12, 2250e12),
    ],
)
def test_the_drivers_names_find_their_peaks(name: str, bandwidth: float, bf16: float) -> None:
    peaks = peaks_of(name)
    assert peaks is not None
    assert (peaks.bandwidth, peaks.at("bf16")) == (bandwidth, bf16)
    assert peaks.source


@pytest.mark.parametrize(
    "name", [None, "", "NVIDIA L40", "NVIDIA A10", "NVIDIA GB200", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H20"]
)
def test_other_gpus_have_no_peaks(name: str | None) -> None:
    assert peaks_of(name) is None


def test_a_format_without_units_falls_back_to_the_next_wider() -> None:
    a100 = peaks_of("NVIDIA A100-SXM4-80GB")
    assert a100 is not None
    assert a100.at("fp8") == a100.at("bf16") == 312e12


@pytest.mark.parametrize(
    ("more", "kind", "weight", "kv"),
    [
        ({}, "bf16", 2, 2),
        ({"dtype": "torch.float16"}, "bf16", 2, 2),
        ({"dtype": "float32"}, "fp32", 4, 4),
        ({"quantization": "fp8"}, "fp8", 1, 2),
        ({"quantization": "awq"}, "bf16", 0.5, 2),
        ({"quantization": "fp8", "kv_dtype": "fp8"}, "fp8", 1, 1),
        ({"quantization": "nvfp4"}, "fp4", 0.5, 2),
    ],
)
def test_bytes_follow_from_the_formats(more: dict[str, str], kind: str, weight: float, kv: float) -> None:
    shape = ModelShape.of(LLAMA | more)
    assert (shape.kind, shape.weight_bytes, shape.kv_bytes) == (kind, weight, kv)


def test_defaults_of_the_shape() -> None:
    plain = {k: v for k, v in LLAMA.items() if k != "kv_heads"}
    shape = ModelShape.of(plain)
    assert (shape.kv_heads, shape.head_dim) == (32, 128)
    assert ModelShape.of(LLAMA | {"active_parameters": 1e9}).weights == 2e9
    with pytest.raises(UnknownShapeError, match="parameters not known"):
        ModelShape.of(LLAMA | {"parameters": None})
