"""What a record says of its setting: the load and its promise, hardware and software, and what limits the findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from servebench.report import effect_words as words
from servebench.report.figures import number, plural
from servebench.report.markdown import code, table

Document = Mapping[str, Any]


def problem(asked: Document) -> str:
    """The scenario in words: what it is for, the load, the traffic and the SLO."""
    from servebench.report.planned import describe_load
    from servebench.scenario.schema import Scenario

    scenario = Scenario.from_resolved(asked["scenario"])
    kinds = [_traffic(kind, scenario.resolved()["workload"]["classes"]) for kind in _classes(asked)]
    promised = [
        f"{name} {text}" for name, texts in (asked["scenario"].get("slo") or {}).items() for text in _all(texts)
    ]
    rows = [
        ["load", describe_load(scenario.load)],
        ["traffic", "; ".join(kinds)],
        ["SLO", ", ".join(promised) or "none"],
    ]
    return f"{scenario.description or scenario.name}.\n\n{table(['', ''], rows)}"


def _classes(asked: Document) -> list[Document]:
    found: list[Document] = asked["scenario"]["workload"]["classes"]
    return found


def _traffic(kind: Document, classes: list[Document]) -> str:
    share = kind["weight"] / sum(each["weight"] for each in classes)
    lengths = [f"{_law(kind[key])} {what}" for key, what in (("input_tokens", "in"), ("output_tokens", "out"))]
    return f"{kind['name']} ({100 * share:.3g} %): {', '.join(lengths)}"


def _law(law: Any) -> str:
    """``lognormal(mean 60, cv 0.5)`` or a plain number of tokens."""
    if not isinstance(law, Mapping):
        return f"{law} tokens"
    name, settings = next(iter(law.items()))
    if not isinstance(settings, Mapping):
        return f"{name} {settings}"
    return f"{name}({', '.join(f'{key} {value}' for key, value in settings.items() if value is not None)}) tokens"


def _all(texts: Any) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)


def environment(summary: Document | None, asked: Document) -> str:
    """Hardware, software, model, shapes and how the load was measured, as one run of the base has them."""
    if summary is None:
        return "No run has ended, so that nothing is known of it."
    rows = [[label, text] for label, text in _facts(summary, asked) if text]
    return table(["", ""], rows)


def _facts(summary: Document, asked: Document) -> Iterator[tuple[str, str]]:
    groups = summary["environment"]
    cpu, memory, system, python = (groups.get(key) or {} for key in ("cpu", "memory", "system", "python"))
    cores = plural(cpu["usable"], "core") if cpu.get("usable") else ""
    total = f"{memory['total_bytes'] / 1e9:.0f} GB" if memory.get("total_bytes") else ""
    yield "client machine", _joined(cpu.get("model"), cores, total, system.get("kernel"))
    yield "GPU", _gpus(summary)
    yield "server", _server(summary, asked)
    yield "model", _model(summary)
    yield "KV cache", _cache(summary)
    yield "servebench", _joined(summary["servebench"], f"Python {python.get('version', '?')}")
    yield "prompts", _joined(_method(summary), summary["prompts"].get("note"))
    yield "lengths", _lengths(summary)
    yield "window", _window(summary)
    yield "client", _client(summary)


def _joined(*parts: Any) -> str:
    return " · ".join(str(part) for part in parts if part)


def _gpus(summary: Document) -> str:
    names = [str(gpu["name"]) for gpu in summary["energy"]["gpus"] if gpu["used"] is not False]
    return ", ".join(names) or str(summary["energy"]["reason"] or "none that the server uses")


def _server(summary: Document, asked: Document) -> str:
    endpoint = summary["endpoint"] or {}
    engine = endpoint.get("engine") or {}
    started = "started for each run" if endpoint.get("server") else str(endpoint.get("url"))
    hook = f"set up by {code(asked['prepare'])}" if asked.get("prepare") else ""
    flags = (endpoint.get("server") or {}).get("flags") or (endpoint.get("server") or {}).get("settings") or {}
    told = ", ".join(f"{key} {value}" for key, value in flags.items())
    return _joined(engine.get("name"), engine.get("version"), started, hook, told and f"base: {told}")


def _model(summary: Document) -> str:
    endpoint, shape = summary["endpoint"] or {}, (summary["server_identity"] or {}).get("model") or {}
    parameters = f"{number(shape['parameters'])} parameters" if shape.get("parameters") else ""
    layers = f"{shape['layers']} layers of {shape['hidden']}" if shape.get("layers") else ""
    kinds = [shape.get(key) for key in ("dtype", "quantization")]
    context = f"context {number(endpoint['max_model_len'])}" if endpoint.get("max_model_len") else ""
    unknown = "" if shape.get("dtype") else "dtype not told by the server"
    return _joined(endpoint.get("model"), shape.get("architecture"), parameters, layers, *kinds, unknown, context)


def _cache(summary: Document) -> str:
    cache = (summary["server_identity"] or {}).get("kv_cache") or {}
    tokens = f"{number(cache['tokens'])} tokens" if cache.get("tokens") else ""
    blocks = f"blocks of {cache['block_size']}" if cache.get("block_size") else ""
    state = cache.get("prefix_caching")
    prefix = "" if state is None else f"prefix caching {'on' if state else 'off'}"
    return _joined(tokens, blocks, cache.get("dtype"), prefix)


def _method(summary: Document) -> str:
    exact = "exact by the server's count" if summary["prompts"].get("exact") else "of approximate length"
    return f"{summary['prompts'].get('method')}, {exact}; a fresh salt each run"


def _lengths(summary: Document) -> str:
    found = {kind: summary["lengths"][kind] for kind in ("input", "output")}
    told = [
        f"{kind} mean {number(one['real']['mean'])}, p99 {number(one['real']['p99'])} tokens"
        for kind, one in found.items()
        if one["n"]
    ]
    return _joined(*told, f"{summary['cohort']['planned']:,} requests in a run's window")


def _window(summary: Document) -> str:
    phases, load = summary["phases"], summary["load"]
    measured = phases["throughput_end_s"] - phases["warmup_end_s"]
    warm = f"{number(phases['warmup_end_s'])} s of warm-up ({phases['warmup_rule']})"
    return _joined(
        f"{load['kind']} loop, latencies from {code(load['origin'])}", warm, f"{number(measured)} s measured"
    )


def _client(summary: Document) -> str:
    found = summary["client"]
    lag = found["loop_lag_p99_ms"]
    return _joined(plural(found["workers"], "worker"), f"loop lag p99 {number(lag)} ms" if lag is not None else "")


def limits(result: Document, summary: Document | None) -> Iterator[str]:
    """What holds for every experiment of this kind, and what one of its runs says."""
    if summary is not None:
        yield from _few(result, summary)
        if _on_this_machine(summary):
            yield "client and server shared one machine: both slow down when either needs more of it"
    yield (
        f"the tests rest on {plural(max(result['pairs']['used'].values(), default=0), 'pair')} of runs; a figure that "
        "was not named for testing before the first run is an estimate"
    )
    yield "one scenario, one machine, one day: another load may show another effect"


def _few(result: Document, summary: Document) -> Iterator[str]:
    """Tested quantiles that rest on fewer samples than they need, within a run."""
    for name in result["design"]["family"]:
        metric, _, quantile = name.partition(".")
        found = summary["metrics"].get(metric)
        if found and quantile in found["below_floor"]:
            yield (
                f"{words.title(name)} rests on {found['n']:,} samples a run, fewer than this quantile needs; its noise "
                "is in the intervals"
            )


def _on_this_machine(summary: Document) -> bool:
    from servebench.engine.reach import is_loopback

    return is_loopback(str((summary["endpoint"] or {}).get("url")))
