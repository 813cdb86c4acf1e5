"""Attaching to a server that is already there: what it is, what it serves and which extras it takes."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from servebench.engine.reach import base_url, is_loopback, open_client, send
from servebench.errors import EngineError, UsageError, did_you_mean

if TYPE_CHECKING:
    import httpx

    from servebench.scenario.schema import Scenario

__all__ = [
    "EndpointFacts",
    "base_url",
    "discover",
    "examine",
    "extras_for",
    "is_loopback",
    "min_tokens_for",
    "open_client",
]

KNOWN_ENGINES = ("vllm", "sim", "sglang")
EXTRAS = ("ignore_eos", "min_tokens", "continuous_usage_stats")  # beyond OpenAI's API; vLLM and the simulated engine
RANDOM_WEIGHTS_MARKER = "RANDOM_WEIGHTS"  # the file that tiny_model_builder leaves beside the weights


@dataclass(frozen=True, slots=True)
class EndpointFacts:
    """What was found out about a server before the load.

    Attributes:
        url: base URL, without `/v1` and without a trailing slash; a path before `/v1` is kept.
        api: "chat" or "completions".
        model: the model's name in requests.
        engine: "vllm", "sim", "sglang" or "unknown".
        version: the engine's own word for it; None if it does not say.
        max_model_len: longest context in tokens; None if the server does not say.
        extras: names in `EXTRAS` that the server is known to take.
        has_tokenize: whether `/tokenize` answers with a count.
        has_detokenize: whether `/detokenize` is there; None if it was not tried and the engine is unknown.
        random_weights: whether the model is known to have random weights, so that its text means nothing.
        notes: one line each on what is missing or was assumed.
    """

    url: str
    api: str
    model: str
    engine: str = "unknown"
    version: str | None = None
    max_model_len: int | None = None
    extras: tuple[str, ...] = ()
    has_tokenize: bool = False
    has_detokenize: bool | None = None
    random_weights: bool = False
    notes: tuple[str, ...] = ()

    @property
    def simulated(self) -> bool:
        """Whether the server is the simulated engine, so that its figures are no hardware's."""
        return self.engine == "sim"


def discover(
    url: str,
    api: str,
    model: str = "auto",
    api_key: str | None = None,
    verify: bool | str | ssl.SSLContext = True,
    timeout: float = 10.0,
) -> EndpointFacts:
    """Find out what serves at `url`, in at most three requests, none of which generates anything.

    Args:
        url: base URL, with or without `/v1`.
        api: "chat" or "completions".
        model: a name (or the path) that the server lists, or "auto" for the first one.
        api_key: value of the key, never its name; it appears in no message.
        verify, timeout: see `open_client`.

    Raises:
        UsageError: a bad URL, key or CA file, or a model that the server does not list.
        EngineError: the server cannot be reached, refuses us or is no OpenAI-compatible API.
    """
    base = base_url(url)
    with open_client(base, api_key, verify, timeout) as client:
        return examine(client, base, api, model)


def examine(client: httpx.Client, url: str, api: str, model: str = "auto") -> EndpointFacts:
    """`discover` with a client that is already open; `url` as `base_url` returns it."""
    listed, fault = _models(client, url)
    entry, notes = _pick(listed, model, url) if listed is not None else _unlisted(model, url, fault)
    name = str(entry["id"])
    version = _get(client, url, "/version")
    engine = _engine(entry, version)
    has_tokenize = _counts(client, url, name)
    length = entry.get("max_model_len")
    return EndpointFacts(
        url=url,
        api=api,
        model=name,
        engine=engine,
        version=str(version["version"]) if "version" in version else None,
        max_model_len=length if type(length) is int and length > 0 else None,
        extras=EXTRAS if engine in ("vllm", "sim") else (),
        has_tokenize=has_tokenize,
        has_detokenize=has_tokenize if engine in KNOWN_ENGINES else None,
        random_weights=_random_weights(entry, name, url),
        notes=notes,
    )


def extras_for(facts: EndpointFacts, scenario: Scenario) -> dict[str, Any]:
    """Return what every body has beyond model, prompt, length and `stream`.

    Output lengths are met with `ignore_eos`, and each chunk carries its own count with `continuous_usage_stats`, but
    only where the server is known to take them. The scenario's `extra_body` goes last, so that it wins.
    """
    extras: dict[str, Any] = {}
    if "ignore_eos" in facts.extras:
        extras["ignore_eos"] = True
    if scenario.endpoint.stream:
        extras["stream_options"] = {"include_usage": True}
        if "continuous_usage_stats" in facts.extras:
            extras["stream_options"]["continuous_usage_stats"] = True
    return _merged(extras, scenario.endpoint.extra_body)


def min_tokens_for(facts: EndpointFacts, scenario: Scenario) -> bool:
    """Whether each body should have `min_tokens`, its own output length: where known, unless the scenario decides."""
    return "min_tokens" in facts.extras and not {"min_tokens", "ignore_eos"} & set(scenario.endpoint.extra_body)


def _merged(extras: dict[str, Any], wishes: Mapping[str, Any]) -> dict[str, Any]:
    """`extras` with `wishes` over them; objects are merged key by key."""
    merged = dict(extras)
    for key, value in wishes.items():
        old = merged.get(key)
        merged[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _models(client: httpx.Client, url: str) -> tuple[list[dict[str, Any]] | None, str]:
    """GET /v1/models: its entries, or None and how it failed; raises EngineError where nothing else can work either."""
    response = send(client, url, "GET", "/v1/models")
    status = response.status_code
    if status in (401, 403):
        sent = "the key was refused" if "authorization" in client.headers else "it wants a key"
        raise EngineError(f"{url} answered {status}: {sent} (name the variable that holds it with --api-key-env)")
    if 300 <= status < 400:
        target = response.headers.get("location", "elsewhere")
        raise EngineError(f"{url} redirects to {_without_secrets(target)}: use that address as the endpoint")
    if status >= 500:
        raise EngineError(f"{url} answered {status} to GET /v1/models: the server (or a proxy before it) is not ready")
    if status != 200:
        return None, f"answered {status}"
    entries = _object(response).get("data")
    if not isinstance(entries, list):
        return (
            None,
            f"answered with {response.headers.get('content-type', 'no content type')}, not with a list of models",
        )
    return [e for e in entries if isinstance(e, dict) and isinstance(e.get("id"), str)], ""


def _unlisted(model: str, url: str, fault: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A model that the server does not list, if it was named, and the note on it."""
    if model == "auto":
        advice = "check the URL, or name the model with --model"
        raise EngineError(f"{url} is no OpenAI-compatible server: GET /v1/models {fault} ({advice})")
    return {"id": model}, (f"the server does not list its models: GET /v1/models {fault}",)


def _pick(listed: list[dict[str, Any]], model: str, url: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The entry of `model`, by its id or its root; of "auto", the first, with a note if there are others."""
    if model == "auto":
        if not listed:
            raise EngineError(f"{url} lists no model (load one there, or name one with --model)")
        several = f'the server lists {len(listed)} models; "{listed[0]["id"]}", the first, is used'
        return listed[0], (several,) if len(listed) > 1 else ()
    for key in ("id", "root"):
        if found := [entry for entry in listed if entry.get(key) == model]:
            return found[0], ()
    names = [entry["id"] for entry in listed]
    known = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    raise UsageError(f'{url} has no model "{model}"{did_you_mean(model, names)}; it lists: {known or "none"}')


def _engine(entry: Mapping[str, Any], version: Mapping[str, Any]) -> str:
    """The engine's name, from the model's owner or its word at /version."""
    if "servebench-sim" in (version.get("engine"), entry.get("owned_by")):
        return "sim"
    owner = entry.get("owned_by")
    return owner if owner in ("vllm", "sglang") else "unknown"


def _counts(client: httpx.Client, url: str, model: str) -> bool:
    """Whether /tokenize answers with a count."""
    try:
        response = send(client, url, "POST", "/tokenize", {"model": model, "prompt": "one two"})
    except EngineError:
        return False
    return response.status_code == 200 and type(_object(response).get("count")) is int


def _random_weights(entry: Mapping[str, Any], name: str, url: str) -> bool:
    """Whether the names say "tiny-random", or the model's folder, if it lies on this machine, has the marker."""
    root = str(entry.get("root") or "")
    if "tiny-random" in name.lower() or "tiny-random" in root.rsplit("/", 1)[-1].lower():
        return True
    return root.startswith("/") and is_loopback(url) and (Path(root) / RANDOM_WEIGHTS_MARKER).is_file()


def _get(client: httpx.Client, url: str, path: str) -> dict[str, Any]:
    """GET a JSON object that not every server has; empty where it has not."""
    try:
        response = send(client, url, "GET", path)
    except EngineError:
        return {}
    return _object(response) if response.status_code == 200 else {}


def _object(response: httpx.Response) -> dict[str, Any]:
    """The body as a JSON object; empty if it is none."""
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _without_secrets(target: str) -> str:
    """A redirect's target without credentials or query, which may hold tokens."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return "an address that is no URL"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
