"""The server under test: attached to, or started for the run and ended after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from servebench.profile.tool import Launch
from servebench.record.redaction import clean_file

if TYPE_CHECKING:
    from servebench.dispatch.conductor import Interrupts
    from servebench.record.rundir import RunDir
    from servebench.run.options import Observer, RunOptions
    from servebench.scenario.schema import Scenario


@dataclass(slots=True)
class Target:
    """The server under test.

    Attributes:
        url: its base URL.
        model: its name in requests, or "auto".
        cold_start: instants and seconds of a launch; None where the server was there before.
        server: what is known of a server that this run started, for the manifest.
        pid: of its first process; None where it is not ours.
        died: says how it ended, if it did so by itself.
    """

    url: str
    model: str
    cold_start: dict[str, Any] | None = None
    server: dict[str, Any] | None = None
    pid: int | None = None
    simulated: bool = False
    random_weights: bool = False
    died: Callable[[], str | None] = lambda: None


@contextmanager
def open_target(
    scenario: Scenario,
    options: RunOptions,
    rundir: RunDir,
    observer: Observer,
    interrupts: Interrupts,
    launch: Launch | None = None,
) -> Iterator[Target]:
    """The server, as long as the context lasts; one that is started here is started as `launch` asks."""
    if options.endpoint == "sim":
        yield from _simulated(scenario, options, rundir, observer)
    elif options.endpoint == "vllm":
        yield from _launched(scenario, options, rundir, observer, interrupts, launch or Launch())
    else:
        from servebench.engine.attach import base_url

        yield Target(base_url(options.endpoint), options.model or scenario.endpoint.model)


def _simulated(scenario: Scenario, options: RunOptions, rundir: RunDir, observer: Observer) -> Iterator[Target]:
    from servebench.engine.sim.launch import start_sim
    from servebench.engine.sim.settings import SimSettings

    observer.status("starting the simulated engine")
    settings = scenario.engine.sim or SimSettings()
    model = options.model or _named(scenario.endpoint.model) or "simulated"
    launched = time.time_ns()
    with start_sim(settings, model, log_path=rundir.log_path("server")) as sim:
        ready = time.time_ns()
        yield Target(
            sim.url,
            model,
            server={"engine": "sim", "settings": SimSettings.of(settings).to_dict()},
            cold_start={"launch_ns": launched, "ready_ns": ready, "ready_s": (ready - launched) / 1e9},
            pid=sim.pid,
            simulated=True,
            died=lambda: None if sim.poll() is None else f"the simulated engine ended with status {sim.poll()}",
        )


def _launched(
    scenario: Scenario,
    options: RunOptions,
    rundir: RunDir,
    observer: Observer,
    interrupts: Interrupts,
    launch: Launch,
) -> Iterator[Target]:
    from servebench.engine.locate import find_vllm_python
    from servebench.engine.vllm import launch_vllm
    from servebench.engine.vllm_log import read_log
    from servebench.engine.vllm_startup import startup_times

    python = find_vllm_python(options.vllm_python)
    settings = _vllm_settings(scenario, options, launch)
    observer.status(f"starting vLLM with {settings.model} (its log: {rundir.log_path('server')})")
    server = launch_vllm(
        settings,
        python,
        rundir.log_path("server"),
        should_stop=lambda: interrupts.count > 0,
        progress=observer.status,
        prefix=launch.prefix,
    )
    try:
        yield Target(
            server.url,
            server.model,
            cold_start=server.cold_start | {"log": startup_times(read_log(server.log_path)) or None},
            server={
                "engine": "vllm",
                "version": server.version,
                "flags": server.flags,
                "env": server.env,
                "command": server.command,
            },
            pid=server.pid,
            random_weights=server.random_weights,
            died=lambda: None if server.alive() else f"vLLM died: {server.why_dead()}",
        )
    finally:
        observer.status("stopping vLLM")
        server.stop()
        clean_file(rundir.log_path("server"), rundir.secrets)


def _vllm_settings(scenario: Scenario, options: RunOptions, launch: Launch) -> Any:
    from servebench.scenario.engine import VllmEngine

    settings = scenario.engine.vllm or VllmEngine(model="tiny-random")
    asked = {"flags": {**launch.flags, **settings.flags}, "env": {**launch.env, **settings.env}}
    return settings.model_copy(update=asked | ({"model": options.model} if options.model else {}))


def _named(model: str) -> str | None:
    return None if model == "auto" else model
