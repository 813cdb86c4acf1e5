"""What a server says of itself, and what its model is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from servebench.engine.attach import EndpointFacts, examine
from servebench.engine.reach import open_client
from servebench.engine.sim.launch import start_sim
from servebench.telemetry.identity import server_identity
from servebench.telemetry.model_config import describe_model

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}
QWEN_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
    "n_inner": 3072,
}
GEMMA = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_attention_heads": 8,
        "num_hidden_layers": 34,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
    },
    "vision_config": {"hidden_size": 1152},
}


@pytest.mark.parametrize(
    ("config", "billions", "active"),
    [
        (LLAMA, 8.03, 7.50),  # as published, the rest is norms; active: without the input embeddings
        (MIXTRAL, 46.70, 12.75),
        (QWEN_MOE, 30.53, 3.04),
        (GPT2, 0.124, 0.124),
        (GEMMA, 3.88, 3.88),
    ],
    ids=["llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt2", "gemma-3-4b text"],
)
def test_parameters_of_known_models_within_half_a_percent(
    config: dict[str, Any], billions: float, active: float
) -> None:
    shape = describe_model(config)
    assert shape["parameters"] / 1e9 == pytest.approx(billions, rel=0.006)
    assert shape["active_parameters"] / 1e9 == pytest.approx(active, rel=0.006)
    assert shape["parameters_reason"] is None


def test_the_shape_of_a_model() -> None:
    shape = describe_model(LLAMA)
    assert {key: shape[key] for key in ("layers", "hidden", "heads", "kv_heads", "head_dim", "max_length")} == {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "max_length": 131072,
    }
    assert (shape["dtype"], shape["quantization"], shape["architecture"]) == ("bfloat16", None, "LlamaForCausalLM")
    assert describe_model(GPT2)["kv_heads"] == 12
    assert describe_model(GEMMA)["heads"] == 8
    assert describe_model(LLAMA, {"dtype": "float16", "kv_dtype": "fp8"})["dtype"] == "float16"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "its config.json does not state layers, hidden, heads, vocabulary, intermediate"),
        ({**LLAMA, "kv_lora_rank": 512}, "it has layers of another kind than attention with plain keys and values"),
        ({**LLAMA, "vocab_size": None}, "its config.json does not state vocabulary"),
    ],
)
def test_no_estimate_where_the_formula_does_not_hold(config: dict[str, Any], reason: str) -> None:
    shape = describe_model(config)
    assert (shape["parameters"], shape["active_parameters"]) == (None, None)
    assert shape["parameters_reason"] == reason


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "compressed-tensors"),
    ],
)
def test_the_quantization_by_its_format(stated: dict[str, Any], name: str) -> None:
    assert describe_model({**LLAMA, "quantization_config": stated})["quantization"] == name


def client_of(pages: dict[str, Any]) -> httpx.Client:
    """A client to a server with these pages, by path and query; a text is sent as it is."""

    def answer(request: httpx.Request) -> httpx.Response:
        page = pages.get(request.url.raw_path.decode())
        if page is None:
            return httpx.Response(404, json={"detail": "Not Found"})
        return httpx.Response(200, text=page) if isinstance(page, str) else httpx.Response(200, json=page)

    return httpx.Client(transport=httpx.MockTransport(answer))


def facts(engine: str = "vllm", url: str = "http://127.0.0.1:8000", model: str = "m") -> EndpointFacts:
    return EndpointFacts(url=url, api="chat", model=model, engine=engine, version="1.2.3")


def models(root: str, name: str = "m") -> dict[str, Any]:
    return {"object": "list", "data": [{"id": name, "object": "model", "root": root}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "someone" / "tiny-llama"
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(LLAMA))
    (place / "model-1.safetensors").write_bytes(b"x" * 100)
    (place / "model-2.safetensors").write_bytes(b"x" * 20)
    return place


CACHE = 'vllm:cache_config_info{block_size="128",cache_dtype="fp8",num_gpu_blocks="64",engine="0"} 1.0\n'


def test_a_model_in_a_folder_of_this_machine(folder: Path) -> None:
    with client_of({"/v1/models": models(str(folder)), "/metrics": CACHE}) as client:
        identity = server_identity(client, facts())
    assert (identity["engine"], identity["version"], identity["models"]) == ("vllm", "1.2.3", ["m"])
    assert identity["model"]["name"] == "tiny-llama"
    assert identity["model"]["layers"] == 32
    assert identity["model"]["weight_file_bytes"] == 120
    assert (identity["model"]["dtype"], identity["model"]["kv_dtype"]) == ("bfloat16", "fp8")
    assert identity["block_size"] == identity["kv_cache"]["block_size"] == 128
    assert identity["settings"] is None
    assert set(identity["absent"]) == {"settings"}
    assert "VLLM_SERVER_DEV_MODE=1" in identity["absent"]["settings"]
    assert str(folder.parent) not in json.dumps(identity)


def test_a_model_in_the_cache_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    place = tmp_path / "hub/models--org--name"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text("abc123\n")
    (place / "snapshots/abc123").mkdir(parents=True)
    (place / "snapshots/abc123/config.json").write_text(json.dumps(LLAMA))
    with client_of({"/v1/models": models("org/name")}) as client:
        identity = server_identity(client, facts())
    assert identity["model"]["name"] == "org/name"
    assert identity["model"]["parameters"] > 8e9
    assert identity["model"]["weight_file_bytes"] is None


@pytest.mark.parametrize(
    ("root", "url", "reason"),
    [
        ("/nowhere/at/all", "http://127.0.0.1:1", "the model's config.json: No such file or directory"),
        ("/etc", "http://10.0.0.1:1", "the server is on another machine, and so are the model's files"),
        ("org/unheard-of", "http://localhost:1", "the model's files are not in the hub's cache of this user"),
        ("../../etc", "http://localhost:1", "the model's name is that of no folder and of no hub"),
        ("s3://bucket/x", "http://localhost:1", "the model's name is that of no folder and of no hub"),
    ],
)
def test_a_model_that_is_not_at_hand_is_null_with_the_reason(
    root: str, url: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with client_of({"/v1/models": models(root)}) as client:
        identity = server_identity(client, facts(url=url))
    assert identity["model"] is None
    assert identity["absent"]["model"] == reason


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_config_that_is_none(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with client_of({"/v1/models": models(str(folder))}) as client:
        assert "config.json is no JSON" in server_identity(client, facts())["absent"]["model"]


def test_settings_of_vllm_are_kept_by_a_list_and_override_the_files(folder: Path) -> None:
    told = {
        "vllm_config": {
            "model_config": {"model": "/home/someone/x", "dtype": "torch.float16", "hf_token": "hf_secret"},
            "cache_config": {"block_size": 32, "cache_dtype": "fp8"},
            "scheduler_config": {"max_num_batched_tokens": 2048, "policy": "fcfs", "enable_chunked_prefill": True},
            "parallel_config": {"tensor_parallel_size": 2},
            "speculative_config": None,
        },
        "vllm_env": {"VLLM_API_KEY": "sk-secret", "VLLM_SECRET": "veiled"},
        "system_env": {"hostname": "someones-machine"},
    }
    with client_of({"/v1/models": models(str(folder)), "/server_info?config_format=json": told}) as client:
        identity = server_identity(client, facts())
    assert identity["settings"] == {
        "model_config.dtype": "float16",
        "cache_config.block_size": 32,
        "cache_config.cache_dtype": "fp8",
        "parallel_config.tensor_parallel_size": 2,
        "scheduler_config.enable_chunked_prefill": True,
        "scheduler_config.max_num_batched_tokens": 2048,
        "scheduler_config.policy": "fcfs",
    }
    assert (identity["model"]["dtype"], identity["model"]["kv_dtype"]) == ("float16", "fp8")
    assert identity["block_size"] == 32
    text = json.dumps(identity)
    assert not any(word in text for word in ("secret", "veiled", "someone"))


def test_settings_of_sglang_by_the_page_that_its_version_has() -> None:
    told = {"api_key": "sk-secret", "chunked_prefill_size": 8192, "page_size": 1, "tp_size": 4, "version": "0.5.4"}
    with client_of({"/v1/models": models("org/name"), "/get_server_info": told}) as client:
        identity = server_identity(client, facts("sglang"))
    assert identity["settings"] == {"chunked_prefill_size": 8192, "page_size": 1, "tp_size": 4, "version": "0.5.4"}
    assert identity["block_size"] == 1


def test_a_server_that_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    silent = EndpointFacts(url="http://127.0.0.1:1", api="chat", model="m")
    pages: dict[str, Any] = {"/v1/models": "<html>", "/metrics": "<html>"}
    with client_of(pages) as client:
        identity = server_identity(client, silent)
    assert {name for name, value in identity.items() if value is None} - {"block_size"} == set(identity["absent"])
    assert identity["absent"]["models"] == "/v1/models gives no JSON object"
    assert identity["absent"]["settings"] == "this engine has no page that tells them"


def test_a_server_that_is_gone(free_port: int) -> None:
    with open_client(f"http://127.0.0.1:{free_port}") as client:
        identity = server_identity(client, facts(url=f"http://127.0.0.1:{free_port}"))
    assert identity["absent"]["kv_cache"] == "/metrics gives no answer"


def test_the_simulated_engine_over_a_real_socket() -> None:
    settings = {"base": 1e-3, "kv_tokens": 16_000, "block_size": 32}
    with start_sim(settings, "toy") as sim, open_client(sim.url) as client:
        identity = server_identity(client, examine(client, sim.url, "chat"))
    assert identity["engine"] == "sim"
    assert identity["models"] == ["toy"]
    assert identity["kv_cache"] == {"block_size": 32, "blocks": 500, "prefix_caching": True}
    assert identity["absent"]["model"] == "no model runs in the simulated engine"
