"""What the server says of itself, and what its model is: for the record, and for hints at what the hardware allows."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servebench.engine.reach import is_loopback, send
from servebench.errors import EngineError
from servebench.telemetry.exposition import cache_config
from servebench.telemetry.model_config import describe_model

if TYPE_CHECKING:
    import httpx

    from servebench.engine.attach import EndpointFacts

MODELS_SHOWN = 20
TEXT_SHOWN = 200

# Of all that a server tells (its environment and keys among it), only what is named here is kept.
SETTINGS = {
    "vllm": (
        "model_config.dtype",
        "model_config.enforce_eager",
        "model_config.max_model_len",
        "model_config.quantization",
        "cache_config.block_size",
        "cache_config.cache_dtype",
        "cache_config.enable_prefix_caching",
        "cache_config.gpu_memory_utilization",
        "cache_config.num_gpu_blocks",
        "parallel_config.data_parallel_size",
        "parallel_config.enable_expert_parallel",
        "parallel_config.pipeline_parallel_size",
        "parallel_config.tensor_parallel_size",
        "scheduler_config.async_scheduling",
        "scheduler_config.enable_chunked_prefill",
        "scheduler_config.long_prefill_token_threshold",
        "scheduler_config.long_prefill_token_threshold_adaptive",
        "scheduler_config.max_num_active_seqs",
        "scheduler_config.max_num_batched_tokens",
        "scheduler_config.max_num_queued_reqs",
        "scheduler_config.max_num_queued_tokens",
        "scheduler_config.max_num_scheduled_tokens",
        "scheduler_config.max_num_seqs",
        "scheduler_config.policy",
        "scheduler_config.prefill_schedule_interval",
        "scheduler_config.stream_interval",
        "speculative_config.method",
        "speculative_config.num_speculative_tokens",
    ),
    "sglang": (
        "attention_backend",
        "chunked_prefill_size",
        "context_length",
        "disable_cuda_graph",
        "disable_radix_cache",
        "dp_size",
        "dtype",
        "enable_mixed_chunk",
        "ep_size",
        "kv_cache_dtype",
        "max_prefill_tokens",
        "max_running_requests",
        "max_total_num_tokens",
        "mem_fraction_static",
        "page_size",
        "pp_size",
        "quantization",
        "schedule_conservativeness",
        "schedule_policy",
        "speculative_algorithm",
        "stream_interval",
        "tp_size",
        "version",
    ),
    "tgi": (
        "docker_label",
        "max_batch_total_tokens",
        "max_concurrent_requests",
        "max_input_tokens",
        "max_total_tokens",
        "model_dtype",
        "sha",
        "version",
        "waiting_served_ratio",
    ),
}
PAGES = {
    "vllm": ("/server_info?config_format=json",),
    "sglang": ("/server_info", "/get_server_info"),
    "tgi": ("/info",),
}
_UNDER = {"vllm": "vllm_config"}


class Unknown(Exception):  # noqa: N818 not an error: it carries the reason why a value is missing
    """Something is not to be had; the text says why, without secrets or folder names."""


def server_identity(client: httpx.Client, facts: EndpointFacts) -> dict[str, Any]:
    """Ask the server what it is, in five requests at most, none of which generates anything.

    Args:
        client: as `open_client` gives it.
        facts: what is known of the server.

    Returns:
        engine, version, models (names), settings (see `SETTINGS`), kv_cache, block_size (tokens in a block of it) and
        model (see `describe_model`); a value that is not to be had is None, and `absent` says why, by its name.
    """
    asked = _Asked(client, facts)
    absent: dict[str, str] = {}
    identity: dict[str, Any] = {"engine": facts.engine}
    for name, read in {
        "version": asked.version,
        "models": asked.models,
        "settings": asked.settings,
        "kv_cache": asked.kv_cache,
    }.items():
        identity[name] = _or_reason(name, read, absent)
    identity["block_size"] = _block_size(identity)
    overrides = _overrides(identity["settings"] or {}, identity["kv_cache"] or {})
    identity["model"] = _or_reason("model", lambda: asked.model(overrides), absent)
    return identity | {"absent": absent}


def _or_reason(name: str, read: Callable[[], Any], absent: dict[str, str]) -> Any:
    try:
        return read()
    except Unknown as reason:
        absent[name] = str(reason)
        return None


def _block_size(identity: Mapping[str, Any]) -> int | None:
    settings, cache = identity["settings"] or {}, identity["kv_cache"] or {}
    places = (cache.get("block_size"), settings.get("cache_config.block_size"), settings.get("page_size"))
    return next((size for size in places if isinstance(size, int) and size > 0), None)


class _Asked:
    """The questions to one server; each raises Unknown where there is no answer."""

    def __init__(self, client: httpx.Client, facts: EndpointFacts) -> None:
        self._client = client
        self._facts = facts

    def version(self) -> str:
        if self._facts.version is None:
            raise Unknown("the server does not say")
        return self._facts.version

    def _entries(self) -> list[dict[str, Any]]:
        listed = self._object("/v1/models").get("data")
        entries = listed if isinstance(listed, list) else []
        return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]

    def models(self) -> list[str]:
        names = [_name(entry["id"])[:TEXT_SHOWN] for entry in self._entries()]
        if not names:
            raise Unknown("the server lists no model")
        return names[:MODELS_SHOWN]

    def settings(self) -> dict[str, Any]:
        engine = self._facts.engine
        reasons = []
        for page in PAGES.get(engine, ()):
            try:
                told = self._object(page)
            except Unknown as reason:
                reasons.append(str(reason))
                continue
            told = told.get(_UNDER.get(engine, ""), told)
            found = dict(_chosen(told if isinstance(told, dict) else {}, SETTINGS[engine]))
            if found:
                return found
            reasons.append(f"{page} tells nothing that is known here")
        hint = " (vLLM has it with VLLM_SERVER_DEV_MODE=1 alone)" if engine == "vllm" else ""
        raise Unknown("; ".join(reasons) + hint if reasons else "this engine has no page that tells them")

    def kv_cache(self) -> dict[str, Any]:
        found = cache_config(self._get("/metrics").content)
        if not found:
            raise Unknown("the page of metrics does not tell it")
        return found

    def model(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        if self._facts.simulated:
            raise Unknown("no model runs in the simulated engine")
        entry = next((e for e in self._entries() if e["id"] == self._facts.model), None)
        root = str((entry or {}).get("root") or self._facts.model)
        if not is_loopback(self._facts.url):
            raise Unknown("the server is on another machine, and so are the model's files")
        folder = _folder_of(root)
        try:
            config = json.loads((folder / "config.json").read_text("utf-8"))
        except OSError as error:
            raise Unknown(f"the model's config.json: {error.strerror}") from None
        except ValueError:
            raise Unknown("the model's config.json is no JSON") from None
        if not isinstance(config, dict):
            raise Unknown("the model's config.json is no JSON object")
        return {"name": _name(root)[:TEXT_SHOWN], **describe_model(config, overrides), **_files(folder)}

    def _object(self, page: str) -> dict[str, Any]:
        try:
            told = self._get(page).json()
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise Unknown(f"{page} gives no JSON object")
        return told

    def _get(self, page: str) -> httpx.Response:
        try:
            response = send(self._client, self._facts.url, "GET", page)
        except EngineError:
            raise Unknown(f"{page} gives no answer") from None
        if response.status_code != 200:
            raise Unknown(f"{page} answers {response.status_code}")
        return response


def _chosen(told: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """The values under dotted names that are there and plain."""
    for name in names:
        value: Any = told
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, (bool, int, float)):
            yield name, value
        elif isinstance(value, str):
            yield name, value.removeprefix("torch.")[:TEXT_SHOWN]


def _overrides(settings: Mapping[str, Any], cache: Mapping[str, Any]) -> dict[str, Any]:
    """What the server was told to do otherwise than the model's files say."""
    wanted = {
        "dtype": ("model_config.dtype", "dtype", "model_dtype"),
        "quantization": ("model_config.quantization", "quantization"),
        "kv_dtype": ("cache_config.cache_dtype", "kv_cache_dtype"),
        "max_length": ("model_config.max_model_len", "context_length", "max_total_tokens"),
    }
    chosen = {name: next((settings[key] for key in keys if settings.get(key)), None) for name, keys in wanted.items()}
    chosen["kv_dtype"] = chosen["kv_dtype"] or cache.get("dtype")
    return {name: value for name, value in chosen.items() if value not in (None, "auto")}


def _name(root: str) -> str:
    """A model's name; of a folder only the last part, since the others say where someone keeps their files."""
    return root.rstrip("/").rpartition("/")[2] if root.startswith(("/", "~", ".")) else root


def _folder_of(root: str) -> Path:
    """Where a model's files lie on this machine: the folder itself, or that of a name in the cache of its hub."""
    if root.startswith("/"):
        return Path(root)
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", root):
        raise Unknown("the model's name is that of no folder and of no hub")
    place = _hub_cache() / f"models--{root.replace('/', '--')}"
    with suppress(OSError):
        return place / "snapshots" / (place / "refs" / "main").read_text().strip()
    raise Unknown("the model's files are not in the hub's cache of this user")


def _hub_cache() -> Path:
    if named := os.environ.get("HF_HUB_CACHE"):
        return Path(named)
    home = os.environ.get("HF_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "huggingface") / "hub"


def _files(folder: Path) -> dict[str, int | None]:
    """Bytes of the weights on disk; None where they are in another format than safetensors."""
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    return {"weight_file_bytes": sum(sizes) or None}
