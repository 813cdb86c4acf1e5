"""What the server is: asked before the load, and once more after it, since it may be another by then."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

    from servebench.engine.attach import EndpointFacts
    from servebench.run.options import RunOptions
    from servebench.run.target import Target
    from servebench.scenario.schema import Scenario
    from servebench.workload.kit import PromptKit

PATIENCE_S = 2.0  # for each answer that the run can do without
COMPARED = ("version", "models", "settings", "kv_cache", "block_size")

Identity = dict[str, Any]


def ask(scenario: Scenario, options: RunOptions, target: Target) -> tuple[EndpointFacts, PromptKit, Identity]:
    """What the server is, how prompts of exact length are written for it, and what it says of itself."""
    from servebench.engine.attach import examine
    from servebench.telemetry.identity import server_identity
    from servebench.workload.prompts import build_kit

    api, extra = scenario.endpoint.api, scenario.endpoint.extra_body
    with client_for(scenario, options, target.url, scenario.endpoint.connect_timeout) as client:
        facts = examine(client, target.url, api, target.model)
        kit = build_kit(client, facts, api, facts.model, options.tokenizer, extra)
    with client_for(scenario, options, target.url, PATIENCE_S) as client:
        return facts, kit, server_identity(client, facts)


def greet(scenario: Scenario, options: RunOptions) -> EndpointFacts:
    """What serves at `options.endpoint`, asked ahead of a run.

    Raises:
        UsageError: a bad URL or key, or a model that the server does not list.
        EngineError: the server cannot be reached or refuses us.
    """
    from servebench.engine.attach import base_url, examine

    url, model = base_url(options.endpoint), options.model or scenario.endpoint.model
    with client_for(scenario, options, url, scenario.endpoint.connect_timeout) as client:
        return examine(client, url, scenario.endpoint.api, model)


def ask_again(scenario: Scenario, options: RunOptions, facts: EndpointFacts, before: Identity) -> Identity:
    """`before`, and what the server says otherwise after the load; `checked_again` is false where it says nothing."""
    from dataclasses import replace

    from servebench.engine.attach import examine
    from servebench.errors import ServebenchError
    from servebench.telemetry.identity import server_identity

    try:
        with client_for(scenario, options, facts.url, PATIENCE_S) as client:
            now = examine(client, facts.url, facts.api, facts.model)
            after = server_identity(client, replace(facts, version=now.version))
    except ServebenchError as error:
        return before | {"checked_again": False, "unchecked": str(error), "changed": []}
    return before | {"checked_again": True, "changed": list(differences(before, after))}


def empty_cache(scenario: Scenario, options: RunOptions, target: Target, warnings: list[str]) -> dict[str, Any]:
    """Have the server forget its prefix cache, where that is wished; what became of it, as ``cache_reset``."""
    from servebench.engine.cache_reset import NOT_ASKED, by_launch, reset_cache

    if target.cold_start is not None:
        return {"cache_reset": by_launch(options.reset_caches).to_dict()}
    if not options.reset_caches:
        return {"cache_reset": NOT_ASKED.to_dict()}
    with client_for(scenario, options, target.url, scenario.endpoint.connect_timeout) as client:
        reset = reset_cache(client, target.url)
    if not reset.done:
        warnings.append(f"the prefix cache was not reset: {reset.reason}")
    return {"cache_reset": reset.to_dict()}


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What is told differently, as `what`, `before`, `after`; what was not told both times is no difference."""
    for key in COMPARED:
        old, new = _flat(before.get(key), key), _flat(after.get(key), key)
        for what in sorted(old.keys() & new.keys()):
            if None not in (old[what], new[what]) and old[what] != new[what]:
                yield {"what": what, "before": old[what], "after": new[what]}


def _flat(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {path: value}
    return {name: each for key, inner in value.items() for name, each in _flat(inner, f"{path}.{key}").items()}


def client_for(scenario: Scenario, options: RunOptions, url: str, timeout: float) -> httpx.Client:
    """An open client for calls outside the load, with the run's key, certificates and headers; `timeout` in s."""
    from servebench.engine.reach import open_client

    key = os.environ.get(options.api_key_env) if options.api_key_env else None
    verify: bool | str = str(options.ca_file) if options.ca_file else not options.insecure
    return open_client(url, key, verify, timeout, scenario.endpoint.headers)
