"""Everything in which two runs' set-ups differ, from their manifests: the check that one variable was changed, not two.

Seeds, salts, instants, ports and what varies from run to run by itself (load, free memory) are left out. Settings of a
server that servebench started appear under the scenario's own keys (``engine.vllm.flags.max-num-seqs``), with the
defaults that it added; those of a server that was there already as the server tells them (``server.``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Manifest = Mapping[str, Any]

SET, SOFTWARE, MACHINE, OBSERVED = "set", "software", "machine", "observed"

# Parts of manifest["environment"] that stay the same while nobody changes the machine.
_MACHINE = {
    "cpu": ("model", "architecture", "logical", "usable", "governor", "max_mhz"),
    "memory": ("total_bytes",),
    "cgroup": ("cpu_cores", "memory_bytes"),
    "system": ("kernel", "distribution", "libc", "container", "hypervisor", "product"),
    "clock": ("source",),
}
_GPU = ("uuid", "name", "vbios", "ecc", "power_limit_w", "clock_sm_max_mhz", "clock_mem_max_mhz", "mig", "compute_mode")
_NO_SETTINGS = ("server.model.", "server.kv_cache.")  # what the server is and has, and not how it is set
_MODEL = ("model", "endpoint.model", "engine.vllm.model")


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that two runs do not have in common.

    Attributes:
        key: dotted.
        a: in the first run; None where it has none.
        b: in the second.
        kind: "set" by whoever made the run, "software", "machine", or "observed" of the server: a consequence of the
            others, such as the size of its KV cache.
    """

    key: str
    a: Any
    b: Any
    kind: str

    @property
    def sets(self) -> bool:
        """Whether it is a variable of its own, and not a consequence."""
        return self.kind != OBSERVED

    def to_dict(self, arm: str, *, named: bool) -> dict[str, Any]:
        """The difference of an arm from the base, as results have it; `named` when it is what was to be compared."""
        return {"arm": arm, "key": self.key, "base": self.a, "cand": self.b, "kind": self.kind, "named": named}


def differences(a: Manifest, b: Manifest) -> list[Difference]:
    """What differs between two runs, by key; [] for two runs of one set-up."""
    ours, theirs = dict(_facts(a)), dict(_facts(b))
    found = []
    for key in dict.fromkeys([*ours, *theirs]):
        kind, mine = ours.get(key, (None, None))
        other, its = theirs.get(key, (None, None))
        kind = kind or other or SET
        if mine != its and (kind == SET or (mine is not None and its is not None)):
            found.append(Difference(key, mine, its, kind))
    return found


def unchanged(a: Manifest, b: Manifest, variables: Sequence[str]) -> list[str]:
    """Settings that, by the server's own word, are the same in both runs, though a variable was to change them.

    A variable that shows in some difference, or of which the server says nothing, adds none.
    """
    theirs, changed = dict(_facts(b)), [each.key for each in differences(a, b)]
    hidden = [name for name in variables if not any(is_named(key, [name]) for key in changed)]
    return [
        f"{key} is {value}"
        for key, (_, value) in _facts(a)
        if key.startswith("server.") and not key.startswith(_NO_SETTINGS) and is_named(key, hidden)
        if value is not None and theirs.get(key, (None, None))[1] == value
    ]


def is_named(key: str, variables: Sequence[str]) -> bool:
    """Whether a key is one of the variables, below one of them, or the server's own word for it.

    Another model brings its own facts along, and another endpoint its URL.
    """
    return any(_is_or_follows(key, name) for name in variables)


def _is_or_follows(key: str, name: str) -> bool:
    if name in _MODEL:
        return key in (*_MODEL, "random_weights") or key.startswith("server.model.")
    if key == name or key.startswith(f"{name}."):
        return True
    return key.startswith("server.") and _last(key) == _last(name)


def _last(key: str) -> str:
    return key.rpartition(".")[2].replace("-", "_")


def is_profiled(manifest: Manifest) -> bool:
    """Whether a profiler ran in the load."""
    return bool(manifest.get("profile"))


Fact = tuple[str, tuple[str, Any]]  # key, (kind, value)


def _facts(manifest: Manifest) -> Iterator[Fact]:
    """Every fact of a set-up that can be compared."""
    yield "simulated", (SET, bool(manifest.get("simulated")))
    yield "random_weights", (SET, bool(manifest.get("random_weights")))
    yield "profiled", (SET, is_profiled(manifest))
    yield from _of_scenario(manifest.get("scenario") or {})
    yield from _of_server(manifest)
    yield "workers", (OBSERVED, len(manifest.get("workers") or []) or None)
    yield "prompts.method", (SET, _at(manifest, "prompts", "method"))
    yield from _of_client(manifest)
    yield from _of_telemetry(_at(manifest, "telemetry", "sources") or {})


def _of_scenario(scenario: Mapping[str, Any]) -> Iterator[Fact]:
    """All but its names, its seeds and the engine, of which the server part says what was really used."""
    for part in ("endpoint", "workload", "load", "slo"):
        yield from _flat(part, scenario.get(part), SET)


def _of_server(manifest: Manifest) -> Iterator[Fact]:
    endpoint = manifest.get("endpoint") or {}
    server = endpoint.get("server") or {}
    launched = bool(server)
    yield "model", (SET, endpoint.get("model"))
    yield "endpoint.url", (SET, "launched by servebench" if launched else endpoint.get("url"))
    yield "endpoint.tls", (SET, endpoint.get("tls"))
    yield "engine.name", (SOFTWARE, _at(endpoint, "engine", "name"))
    yield "engine.version", (SOFTWARE, _at(endpoint, "engine", "version"))
    name = server.get("engine")
    yield from _flat(f"engine.{name}.flags", server.get("flags"), SET)
    yield from _flat(f"engine.{name}.env", server.get("env"), SET)
    yield from _flat(f"engine.{name}", server.get("settings"), SET)
    yield from _of_identity(manifest.get("server_identity") or {}, OBSERVED if launched else SET)


def _of_identity(identity: Mapping[str, Any], told: str) -> Iterator[Fact]:
    """What the server says of itself: its settings are `told`; what follows from them is observed."""
    for key, value in (identity.get("settings") or {}).items():
        yield f"server.{key}", (told, value)
    yield from _flat("server.kv_cache", identity.get("kv_cache"), OBSERVED)
    model = identity.get("model") or {}
    for key in ("name", "architecture", "dtype", "quantization", "kv_dtype", "parameters", "max_length"):
        yield f"server.model.{key}", (told, model.get(key))


def _of_client(manifest: Manifest) -> Iterator[Fact]:
    yield "servebench", (SOFTWARE, manifest.get("servebench"))
    environment = manifest.get("environment") or {}
    for part, names in _MACHINE.items():
        for name in names:
            yield f"client.{part}.{name}", (MACHINE, _at(environment, part, name))
    yield "client.python", (SOFTWARE, _at(environment, "python", "version"))
    for name, version in (environment.get("packages") or {}).items():
        yield f"client.packages.{name}", (SOFTWARE, version)


def _of_telemetry(sources: Mapping[str, Any]) -> Iterator[Fact]:
    for name, source in sources.items():
        yield f"telemetry.{name}", (SET, source.get("state") == "sampled")
        yield f"telemetry.{name}.asked_hz", (SET, source.get("asked_hz"))
    nvml = sources.get("nvml") or {}
    yield "gpu.driver", (SOFTWARE, nvml.get("driver"))
    yield "gpu.cuda", (SOFTWARE, nvml.get("cuda"))
    for device in nvml.get("devices") or []:
        for fact in _GPU:
            yield f"gpu.{device.get('index')}.{fact}", (MACHINE, device.get(fact))


def _flat(prefix: str, value: Any, kind: str) -> Iterator[Fact]:
    """The leaves of a document; parts of a list go by their names, or else by their numbers."""
    if isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        value = {_part(index, inner): inner for index, inner in enumerate(value)}
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}", inner, kind)
    elif value is not None:
        yield prefix, (kind, value)


def _part(index: int, inner: Any) -> Any:
    return inner.get("name", index) if isinstance(inner, Mapping) else index


def _at(document: Mapping[str, Any], *keys: str) -> Any:
    found: Any = document
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
