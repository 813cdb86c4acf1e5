from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ab_runs import manifest
from servebench.experiment.comparison.differences import Difference, differences, is_named, unchanged

EXAMPLE = Path(__file__).parents[3] / "results" / "example-chat" / "run.json"
FLAG = "engine.vllm.flags.max-num-batched-tokens"


@pytest.fixture
def launched() -> dict[str, Any]:
    """A real run's manifest, as if servebench had launched the server."""
    found = json.loads(EXAMPLE.read_text())
    server = {"engine": "vllm", "flags": {"max-num-batched-tokens": 2048}, "env": {"A": "1"}, "command": ["vllm", "1"]}
    found["endpoint"]["server"] = server
    return dict(found)


def changed(document: dict[str, Any], value: Any, *path: str | int) -> dict[str, Any]:
    """A copy with one value changed."""
    found = copy.deepcopy(document)
    place: Any = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return found


def keys(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return [each.key for each in differences(a, b)]


def test_a_run_does_not_differ_from_itself(launched: dict[str, Any]) -> None:
    assert differences(launched, copy.deepcopy(launched)) == []


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (7, ("scenario", "seed", "arrivals")),
        (7, ("plan", "salt")),
        ("other", ("plan", "hash")),
        (1, ("created_ns",)),
        (99, ("phases", "start_ns")),
        ("http://127.0.0.1:9", ("endpoint", "url")),
        (9.5, ("environment", "cpu", "load_1m")),
        (1, ("environment", "memory", "free_bytes")),
        (["tiny-random", "tiny-random-1"], ("server_identity", "models")),
        (["vllm", "2"], ("endpoint", "server", "command")),
        ("another name", ("scenario", "name")),
        (3.0, ("telemetry", "sources", "server", "longest_gap_s")),
        (5, ("workers", 0, "pid")),
    ],
)
def test_what_varies_by_itself_is_no_difference(launched: dict[str, Any], value: Any, path: tuple[str, ...]) -> None:
    assert keys(launched, changed(launched, value, *path)) == []


@pytest.mark.parametrize(
    ("value", "path", "key", "kind"),
    [
        (256, ("endpoint", "server", "flags", "max-num-batched-tokens"), FLAG, "set"),
        ("2", ("endpoint", "server", "env", "A"), "engine.vllm.env.A", "set"),
        ("other", ("endpoint", "model"), "model", "set"),
        ("0.33.0", ("endpoint", "engine", "version"), "engine.version", "software"),
        (8.0, ("scenario", "load", "poisson"), "load.poisson", "set"),
        (9.0, ("scenario", "workload", "classes", 0, "weight"), "workload.classes.default.weight", "set"),
        ("EPYC", ("environment", "cpu", "model"), "client.cpu.model", "machine"),
        ("1.0", ("environment", "packages", "numpy"), "client.packages.numpy", "software"),
        (1.0, ("telemetry", "sources", "server", "asked_hz"), "telemetry.server.asked_hz", "set"),
        ("absent", ("telemetry", "sources", "server", "state"), "telemetry.server", "set"),
        (999, ("server_identity", "kv_cache", "blocks"), "server.kv_cache.blocks", "observed"),
        ("float16", ("server_identity", "model", "dtype"), "server.model.dtype", "observed"),
    ],
)
def test_each_difference_is_found_under_its_key(
    launched: dict[str, Any], value: Any, path: tuple[str, ...], key: str, kind: str
) -> None:
    found = differences(launched, changed(launched, value, *path))
    assert [(each.key, each.kind) for each in found] == [(key, kind)]
    assert found[0].b == value or key == "telemetry.server"


def test_flag_that_only_one_has_differs(launched: dict[str, Any]) -> None:
    other = changed(launched, {}, "endpoint", "server", "flags")
    assert differences(launched, other) == [Difference(FLAG, 2048, None, "set")]


def test_fact_that_only_one_run_knows_is_no_difference(launched: dict[str, Any]) -> None:
    other = changed(launched, None, "environment", "cpu", "model")
    assert keys(launched, other) == []


def test_gpus_are_compared_one_by_one(launched: dict[str, Any]) -> None:
    gpus = [{"index": 0, "name": "H200", "power_limit_w": 700.0}]
    ours = changed(launched, gpus, "telemetry", "sources", "nvml", "devices")
    theirs = changed(ours, 500.0, "telemetry", "sources", "nvml", "devices", 0, "power_limit_w")
    assert differences(ours, theirs) == [Difference("gpu.0.power_limit_w", 700.0, 500.0, "machine")]


def test_profiled_run_differs(launched: dict[str, Any]) -> None:
    assert keys(launched, launched | {"profile": [{"tool": "nsys"}]}) == ["profiled"]


def test_servers_own_settings_are_variables_only_where_nothing_else_tells_them(launched: dict[str, Any]) -> None:
    key = "scheduler_config.max_num_seqs"
    ours = changed(launched, {key: 64}, "server_identity", "settings")
    theirs = changed(launched, {key: 128}, "server_identity", "settings")
    assert differences(ours, theirs) == [Difference(f"server.{key}", 64, 128, "observed")]
    attached = [changed(each, None, "endpoint", "server") for each in (ours, theirs)]
    assert differences(*attached) == [Difference(f"server.{key}", 64, 128, "set")]


def test_url_differs_between_attached_servers_only(launched: dict[str, Any]) -> None:
    attached = changed(launched, None, "endpoint", "server")
    assert keys(attached, changed(attached, "http://b:8000", "endpoint", "url")) == ["endpoint.url"]


def test_settings_of_the_simulated_engine_go_by_the_scenarios_keys() -> None:
    assert keys(manifest(2048), manifest(256)) == ["engine.sim.max_num_batched_tokens"]


@pytest.mark.parametrize(
    ("key", "variable"),
    [
        (FLAG, FLAG),
        ("server.scheduler_config.max_num_batched_tokens", FLAG),
        ("server.scheduler_config.max_num_batched_tokens", "hook.max_num_batched_tokens"),
        ("endpoint.url", "endpoint"),
        ("model", "engine.vllm.model"),
        ("server.model.parameters", "model"),
        ("random_weights", "model"),
        ("load.max_in_flight.limit", "load.max_in_flight"),
    ],
)
def test_named_variable_and_what_comes_with_it(key: str, variable: str) -> None:
    assert is_named(key, [variable])


@pytest.mark.parametrize(
    ("key", "variable"),
    [
        ("engine.vllm.flags.max-num-seqs", FLAG),
        ("engine.version", "endpoint"),
        ("model", "endpoint.extra_body.model"),
        ("engine.vllm.flags.max-num-batched-tokens-more", FLAG),
    ],
)
def test_anything_else_is_not_named(key: str, variable: str) -> None:
    assert not is_named(key, [variable])


def test_empty_manifests_do_not_differ() -> None:
    assert differences({}, {}) == []


def test_settings_that_a_variable_left_as_they_were(launched: dict[str, Any]) -> None:
    settings = {"scheduler_config.max_num_seqs": 64, "name": "x"}
    ours = changed(changed(launched, settings, "server_identity", "settings"), None, "endpoint", "server")
    theirs = changed(ours, {"scheduler_config.max_num_seqs": 128, "name": "x"}, "server_identity", "settings")
    key = "server.scheduler_config.max_num_seqs"
    assert unchanged(ours, ours, ["hook.max_num_seqs"]) == [f"{key} is 64"]
    assert unchanged(ours, theirs, ["hook.max_num_seqs"]) == [], "it changed"
    assert unchanged(ours, ours, ["hook.clock"]) == [], "the server says nothing of it"
