"""One run, from a scenario to a run directory: the only place that ties engine, workload and dispatch together."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servebench import __version__
from servebench.dispatch.conductor import Course, Interrupts, conduct
from servebench.dispatch.crew import Crew
from servebench.dispatch.job import Job, share
from servebench.dispatch.losses import record_losses
from servebench.errors import UsageError
from servebench.record.counters import LiveCounters
from servebench.record.place import Place, is_disk_error
from servebench.record.rundir import RunDir

if TYPE_CHECKING:
    from servebench.engine.attach import EndpointFacts
    from servebench.scenario.schema import Scenario
    from servebench.workload.kit import PromptKit
    from servebench.workload.plan import Plan

TOKENS_PER_WORKER = 25_000  # a second; what one worker is trusted with on `--workers auto`
TOKENS_PER_STREAM = 60  # a second; a guess at what a closed loop's slot will receive


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line adds to a scenario.

    Attributes:
        endpoint: a base URL, "vllm" or "sim".
        model: overrides the scenario's model.
        out: the run directory; None makes one below `results`.
        results: where run directories go by default.
        workers: worker processes; None chooses by the plan's rate and the machine's processors.
        keep_raw: whether raw bytes are stored.
        tokenizer: a local tokenizer, for servers without one.
        api_key_env: name of the environment variable that holds the API key.
        ca_file: trusted certificates instead of the system's.
        insecure: do not check certificates.
        vllm_python: the Python that has vLLM.
        salt: of the prompts; None draws one, so that no run meets the cache of another.
    """

    endpoint: str = "vllm"
    model: str | None = None
    out: Path | None = None
    results: Path = Path("results")
    workers: int | None = None
    keep_raw: bool = False
    tokenizer: str | None = None
    api_key_env: str | None = None
    ca_file: Path | None = None
    insecure: bool = False
    vllm_python: Path | None = None
    salt: int | None = None


class Observer:
    """What a live view overrides; every method does nothing here."""

    def status(self, text: str) -> None:
        """What is being waited for before there is load."""

    def load(self, scenario: Scenario, target: Target, counters: LiveCounters, rows: int) -> None:
        """The load starts; `counters` show it until `done`."""

    def done(self) -> None:
        """The load has ended."""


@dataclass(slots=True)
class Target:
    """The server under test.

    Attributes:
        url: its base URL.
        model: its name in requests, or "auto".
        cold_start: instants and seconds of a launch; None where the server was there before.
        server: what is known of a server that this run started, for the manifest.
        stop: ends it; None where it is not ours.
        died: says how it ended, if it did so by itself.
    """

    url: str
    model: str
    cold_start: dict[str, Any] | None = None
    server: dict[str, Any] | None = None
    simulated: bool = False
    random_weights: bool = False
    died: Callable[[], str | None] = lambda: None


def run(scenario: Scenario, options: RunOptions, observer: Observer | None = None, crew: Crew | None = None) -> RunDir:
    """Execute `scenario` and return its finished run directory, analysed by nobody yet.

    An interrupted run returns as well, with the status "interrupted" in its manifest.

    Args:
        scenario: what to do.
        options: where and how.
        observer: is told how far the run is.
        crew: worker processes that were started already, to save their start-up time.

    Raises:
        UsageError: the scenario or the options cannot be used, or the run directory cannot be written to.
        EngineError: the server cannot be reached or started.
        KeyboardInterrupt: SIGINT or SIGTERM came before the load; nothing is left behind.
    """
    observer = observer or Observer()
    if options.workers is not None:
        _check_workers(scenario, options.workers)
    with ExitStack() as stack:
        crew = stack.enter_context(crew or Crew(options.workers or 1))
        interrupts = stack.enter_context(Interrupts())
        place = Place(scenario.name, options.out, options.results)
        try:
            rundir = place.occupy()
            rundir.manifest |= _opening(scenario, options)
            rundir.save_manifest()
            _execute(scenario, options, rundir, crew, observer, interrupts, stack)
        except BaseException as error:
            crew.kill()
            place.leave(error)
            if is_disk_error(error):
                reason = getattr(error, "strerror", None) or error
                raise UsageError(f"the run in {place.path} cannot go on: {reason}") from error
            raise
    return rundir


def _execute(
    scenario: Scenario,
    options: RunOptions,
    rundir: RunDir,
    crew: Crew,
    observer: Observer,
    interrupts: Interrupts,
    stack: ExitStack,
) -> None:
    from servebench.telemetry.host import environment
    from servebench.workload.planning import make_plan

    observer.status("making the plan")
    with interrupts.raising():
        plan = make_plan(scenario)
        plan.write(rundir.plan_path)
    target = stack.enter_context(_target(scenario, options, rundir, observer, interrupts))
    observer.status("asking the server what it is")
    with interrupts.raising():
        facts, kit = _ask(scenario, options, target)
        salt = options.salt if options.salt is not None else secrets.randbits(48)
        _describe(rundir, scenario, options, plan, target, facts, kit, salt)
        workers = options.workers or _workers_for(scenario, plan)
        crew.recruit(workers)
        counters = LiveCounters.create(workers)
        stack.callback(counters.unlink)
        jobs = [_job(scenario, options, rundir, counters, facts, kit, salt, n, workers) for n in range(workers)]
        crew.brief(jobs, rundir.journal_dir)
        rundir.manifest["environment"] = environment()  # while the workers prepare: nothing of the kind under load
        rundir.save_manifest()
        crew.wait_ready(counters)
    counters.unlink()  # all have it mapped; a name left behind would outlive a kill
    observer.load(scenario, target, counters, len(plan))
    try:
        course = conduct(crew, counters, _window(scenario), scenario.load.drain, interrupts)
    finally:
        observer.done()
    observer.status("writing the results")
    _close(rundir, scenario, crew, counters, plan, course, target)


def _opening(scenario: Scenario, options: RunOptions) -> dict[str, Any]:
    return {
        "servebench": __version__,
        "name": scenario.name,
        "command": ["servebench", *sys.argv[1:]],
        "scenario": scenario.resolved(),
        "simulated": options.endpoint == "sim",
        "random_weights": False,
        "warnings": [],
    }


@contextmanager
def _target(
    scenario: Scenario, options: RunOptions, rundir: RunDir, observer: Observer, interrupts: Interrupts
) -> Iterator[Target]:
    """The server: attached to, or started and ended."""
    if options.endpoint == "sim":
        yield from _simulated(scenario, options, rundir, observer)
    elif options.endpoint == "vllm":
        yield from _launched(scenario, options, rundir, observer, interrupts)
    else:
        from servebench.engine.attach import base_url

        yield Target(base_url(options.endpoint), options.model or scenario.endpoint.model)


def _simulated(scenario: Scenario, options: RunOptions, rundir: RunDir, observer: Observer) -> Iterator[Target]:
    from servebench.engine.sim.launch import start_sim
    from servebench.engine.sim.settings import SimSettings

    observer.status("starting the simulated engine")
    settings = scenario.engine.sim or SimSettings()
    model = options.model or _named(scenario.endpoint.model) or "simulated"
    with start_sim(settings, model, log_path=rundir.log_path("server")) as sim:
        yield Target(
            sim.url,
            model,
            server={"engine": "sim", "settings": SimSettings.of(settings).to_dict()},
            simulated=True,
            died=lambda: None if sim.poll() is None else f"the simulated engine ended with status {sim.poll()}",
        )


def _launched(
    scenario: Scenario, options: RunOptions, rundir: RunDir, observer: Observer, interrupts: Interrupts
) -> Iterator[Target]:
    from servebench.engine.locate import find_vllm_python
    from servebench.engine.vllm import launch_vllm

    python = find_vllm_python(options.vllm_python)
    settings = _vllm_settings(scenario, options)
    observer.status(f"starting vLLM with {settings.model} (its log: {rundir.log_path('server')})")
    server = launch_vllm(
        settings,
        python,
        rundir.log_path("server"),
        should_stop=lambda: interrupts.count > 0,
        progress=observer.status,
    )
    try:
        yield Target(
            server.url,
            server.model,
            cold_start=server.cold_start,
            server={
                "engine": "vllm",
                "version": server.version,
                "flags": server.flags,
                "env": server.env,
                "command": server.command,
            },
            random_weights=server.random_weights,
            died=lambda: None if server.alive() else f"vLLM died: {server.why_dead()}",
        )
    finally:
        observer.status("stopping vLLM")
        server.stop()


def _vllm_settings(scenario: Scenario, options: RunOptions) -> Any:
    from servebench.scenario.engine import VllmEngine

    settings = scenario.engine.vllm or VllmEngine(model="tiny-random")
    return settings.model_copy(update={"model": options.model}) if options.model else settings


def _named(model: str) -> str | None:
    return None if model == "auto" else model


def _ask(scenario: Scenario, options: RunOptions, target: Target) -> tuple[EndpointFacts, PromptKit]:
    """What the server is, and how prompts of exact length are written for it."""
    from servebench.engine.attach import examine
    from servebench.engine.reach import open_client
    from servebench.workload.prompts import build_kit

    key = os.environ.get(options.api_key_env) if options.api_key_env else None
    verify: bool | str = str(options.ca_file) if options.ca_file else not options.insecure
    api, extra = scenario.endpoint.api, scenario.endpoint.extra_body
    with open_client(target.url, key, verify, scenario.endpoint.connect_timeout, scenario.endpoint.headers) as client:
        facts = examine(client, target.url, api, target.model)
        return facts, build_kit(client, facts, api, facts.model, options.tokenizer, extra)


def _describe(
    rundir: RunDir,
    scenario: Scenario,
    options: RunOptions,
    plan: Plan,
    target: Target,
    facts: EndpointFacts,
    kit: PromptKit,
    salt: int,
) -> None:
    """Write into the manifest what is known before the first request."""
    manifest = rundir.manifest
    manifest["simulated"] = target.simulated or facts.simulated
    manifest["random_weights"] = target.random_weights or facts.random_weights
    manifest["plan"] = {
        "hash": plan.hash,
        "rows": len(plan),
        "seeds": scenario.seeds.model_dump(),
        "salt": salt,
        "classes": list(plan.classes),
    }
    tls = {"verified": not options.insecure, "ca_file": options.ca_file is not None}
    manifest["endpoint"] = {
        "url": facts.url,
        "api": facts.api,
        "model": facts.model,
        "engine": {"name": facts.engine, "version": facts.version},
        "max_model_len": facts.max_model_len,
        "server": target.server,
        "tls": tls if facts.url.startswith("https:") else None,
        "extras": list(facts.extras),
    }
    manifest["prompts"] = kit.summary()
    manifest["cold_start"] = target.cold_start
    manifest["selftest"] = _selftest()
    manifest["warnings"] += [*facts.notes, *_warnings(scenario, options, plan, facts)]


def _selftest() -> dict[str, Any] | None:
    from servebench.record.ceiling import read_ceiling

    return read_ceiling()


def _warnings(scenario: Scenario, options: RunOptions, plan: Plan, facts: EndpointFacts) -> list[str]:
    warnings = _beyond_ceiling(scenario, options, plan)
    if options.insecure:
        warnings.append("TLS certificates were not checked (--insecure)")
    longest = int((plan.input_tokens.astype("int64") + plan.output_tokens).max())
    if facts.max_model_len is not None and longest > facts.max_model_len:
        over = int((plan.input_tokens.astype("int64") + plan.output_tokens > facts.max_model_len).sum())
        warnings.append(
            f"{over} of {len(plan)} requests are longer than the server's context of {facts.max_model_len} tokens"
        )
    return warnings


def _beyond_ceiling(scenario: Scenario, options: RunOptions, plan: Plan) -> list[str]:
    """A warning when the plan asks for more tokens a second than this machine's workers have shown."""
    from servebench.record.ceiling import read_ceiling

    shown = (read_ceiling() or {}).get("tokens_per_s_at_1ms_p99")
    if not shown or scenario.load.closed is not None:  # a closed loop asks for no rate
        return []
    workers = options.workers or _workers_for(scenario, plan)
    rate = _planned_rate(plan)
    if rate <= shown * workers:
        return []
    return [
        f"the plan asks for {rate:,.0f} tokens/s; {workers} workers on this machine have shown {shown * workers:,.0f} "
        "(servebench selftest): use more --workers, or a larger machine"
    ]


def _planned_rate(plan: Plan) -> float:
    """Output tokens a second that an open loop asks for, on average."""
    seconds = max(1.0, float(plan.scheduled_ns[-1]) / 1e9)
    return float(plan.output_tokens.sum(dtype="int64")) / seconds


def _workers_for(scenario: Scenario, plan: Plan) -> int:
    """As many workers as the expected token rate needs, but one processor stays free where there are several."""
    if scenario.load.closed is not None:
        rate = float(scenario.load.closed.concurrency * TOKENS_PER_STREAM)
    else:
        rate = _planned_rate(plan)
    processors = len(os.sched_getaffinity(0)) - 1
    return max(1, min(-(-int(rate) // TOKENS_PER_WORKER), processors, *_shared_out(scenario).values()))


def _shared_out(scenario: Scenario) -> dict[str, int]:
    """What the workers share among them, of which each needs one at least."""
    load = scenario.load
    limits = {}
    if load.closed:
        limits["load.closed.concurrency"] = load.closed.concurrency
    if load.max_in_flight:
        limits["load.max_in_flight"] = load.max_in_flight.limit
    if load.throttle:
        limits["load.throttle"] = load.throttle.limit
    return limits


def _check_workers(scenario: Scenario, workers: int) -> None:
    for key, limit in _shared_out(scenario).items():
        if workers > limit:
            raise UsageError(f"{workers} workers cannot share the {limit} of {key}: give --workers {limit} or fewer")


def _processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _window(scenario: Scenario) -> tuple[int, int | None]:
    from servebench.workload.planning import cohort_bounds_ns

    start, end = cohort_bounds_ns(scenario.load)
    return start, None if scenario.load.duration is None else end


def _job(
    scenario: Scenario,
    options: RunOptions,
    rundir: RunDir,
    counters: LiveCounters,
    facts: EndpointFacts,
    kit: PromptKit,
    salt: int,
    number: int,
    workers: int,
) -> Job:
    from servebench.engine.attach import extras_for, min_tokens_for

    load, endpoint = scenario.load, scenario.endpoint
    cap, throttle = load.max_in_flight, load.throttle
    return Job(
        rundir=str(rundir.path),
        counters=str(counters.path),
        worker=number,
        workers=workers,
        url=facts.url,
        api=endpoint.api,
        model=facts.model,
        stream=endpoint.stream,
        headers=dict(endpoint.headers),
        extras=extras_for(facts, scenario),
        min_tokens=min_tokens_for(facts, scenario),
        kit=kit.to_dict(),
        salt=salt,
        api_key_env=options.api_key_env,
        verify=not options.insecure,
        ca_file=str(options.ca_file) if options.ca_file else None,
        connect_timeout=endpoint.connect_timeout,
        idle_timeout=endpoint.idle_timeout,
        timeout=endpoint.timeout,
        concurrency=share(load.closed.concurrency, number, workers) if load.closed else None,
        think=load.closed.think if load.closed else 0.0,
        max_in_flight=share(cap.limit, number, workers) if cap else None,
        drop_when_full=cap is not None and cap.policy == "drop",
        throttle=(share(throttle.limit, number, workers), throttle.period) if throttle else None,
        cohort=_window(scenario),
        keep_raw=options.keep_raw,
        tokenizer=options.tokenizer,
    )


def _close(
    rundir: RunDir,
    scenario: Scenario,
    crew: Crew,
    counters: LiveCounters,
    plan: Plan,
    course: Course,
    target: Target,
) -> None:
    """Write what is known after the last request, and merge the journals."""
    manifest = rundir.manifest
    manifest["workers"] = crew.figures(rundir.journal_dir)
    manifest["phases"] = {
        name: getattr(course, name)
        for name in ("start_ns", "warmup_end_ns", "measured_end_ns", "load_end_ns", "end_ns")
    }
    manifest["clocks"] = {"anchors": [asdict(anchor) for anchor in course.anchors]}
    if (death := target.died()) is not None:
        manifest["warnings"].append(death)
    if dead := crew.dead(counters):
        manifest["warnings"] += [f"worker {number} died: {crew.last_words(number)}" for number in dead]
        record_losses(rundir, plan, counters.snapshot(), dead, course)
    manifest["status"] = "interrupted" if course.interrupted else "complete"
    rundir.save_manifest()
    _tidy(rundir, crew)
    rundir.finalise()


def _tidy(rundir: RunDir, crew: Crew) -> None:
    """Remove the workers' notes, now in the manifest, and keep what they wrote to their error output."""
    for number in range(len(crew)):
        for name in (f"worker-{number}.json", f"worker-{number}.job.json"):
            (rundir.journal_dir / name).unlink(missing_ok=True)
        if text := crew.log(number):
            rundir.log_path(f"worker-{number}").write_text(text, "utf-8")
