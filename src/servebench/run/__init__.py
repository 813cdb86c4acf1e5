"""One run, from a scenario to a run directory: the only place that ties engine, workload and dispatch together."""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack
from typing import TYPE_CHECKING

from servebench.dispatch.conductor import Course, Interrupts, conduct
from servebench.dispatch.crew import Crew
from servebench.dispatch.losses import record_losses
from servebench.errors import UsageError
from servebench.record.counters import LiveCounters
from servebench.record.place import Place, is_disk_error
from servebench.record.redaction import secrets_of, without
from servebench.run.asking import ask, ask_again, empty_cache
from servebench.run.manifest import closing, describe, opening
from servebench.run.options import Observer, RunOptions
from servebench.run.sampling import Sampling
from servebench.run.staff import check_workers, job_of, window_of, workers_for
from servebench.run.target import Target, open_target

if TYPE_CHECKING:
    from servebench.record.rundir import RunDir
    from servebench.run.profiling import Profiling, Within
    from servebench.scenario.schema import Scenario
    from servebench.workload.plan import Plan

__all__ = ["Observer", "RunOptions", "Target", "run"]


def run(
    scenario: Scenario,
    options: RunOptions,
    observer: Observer | None = None,
    crew: Crew | None = None,
    within: Within | None = None,
) -> RunDir:
    """Execute `scenario` and return its finished run directory, analysed by nobody yet.

    An interrupted run returns as well, with the status "interrupted" in its manifest.

    Args:
        scenario: what to do.
        options: where and how.
        observer: is told how far the run is.
        crew: worker processes that were started already, to save their start-up time.
        within: what it shares with another run, a profile window of which it is.

    Raises:
        UsageError: the scenario or the options cannot be used, or the run directory cannot be written to.
        EngineError: the server cannot be reached or started.
        KeyboardInterrupt: SIGINT or SIGTERM came before the load; nothing is left behind.
    """
    observer = observer or Observer()
    if options.workers is not None:
        check_workers(scenario, options.workers)
    with ExitStack() as stack:
        crew = stack.enter_context(crew or Crew(options.workers or 1))
        sampling = stack.enter_context(Sampling(options))
        interrupts = within.interrupts if within else stack.enter_context(Interrupts())
        place = Place(scenario.name, options.out, options.results)
        try:
            rundir = place.occupy()
            rundir.secrets = _secrets(scenario, options)
            rundir.manifest |= opening(scenario, options) | ({"profile": within.profile} if within else {})
            profiling = _profiling(options, rundir)
            rundir.save_manifest()
            _execute(scenario, options, rundir, crew, sampling, observer, interrupts, stack, within, profiling)
        except BaseException as error:
            crew.kill()
            sampling.kill()
            place.leave(error)
            if is_disk_error(error):
                reason = getattr(error, "strerror", None) or error
                raise UsageError(f"the run in {place.path} cannot go on: {reason}") from error
            raise
    if profiling is not None:
        profiling.collect(observer)  # now that the server has ended: some tools write their reports only then
    return rundir


def _profiling(options: RunOptions, rundir: RunDir) -> Profiling | None:
    if options.profile is None:
        return None
    from servebench.run.profiling import Profiling

    return Profiling(options.profile, rundir)


def _secrets(scenario: Scenario, options: RunOptions) -> tuple[str, ...]:
    return secrets_of(scenario.resolved(), os.environ, (options.api_key_env, options.telemetry_token_env))


def _execute(
    scenario: Scenario,
    options: RunOptions,
    rundir: RunDir,
    crew: Crew,
    sampling: Sampling,
    observer: Observer,
    interrupts: Interrupts,
    stack: ExitStack,
    within: Within | None,
    profiling: Profiling | None,
) -> None:
    from servebench.telemetry.host import environment
    from servebench.workload.planning import make_plan

    observer.status("making the plan")
    with interrupts.raising():
        plan = make_plan(scenario)
        plan.write(rundir.plan_path)
    if within:
        target = within.target
    else:
        launch = profiling.launch if profiling else None
        target = stack.enter_context(open_target(scenario, options, rundir, observer, interrupts, launch))
    if profiling is not None:
        profiling.attach(scenario, options, target)
    observer.status("asking the server what it is")
    with interrupts.raising():
        facts, kit, identity = ask(scenario, options, target)
        sampling.begin(scenario, rundir, facts, target)
        salt = options.salt if options.salt is not None else secrets.randbits(48)
        describe(rundir, scenario, options, plan, target, facts, kit, salt)
        target.simulated, target.random_weights = (rundir.manifest[key] for key in ("simulated", "random_weights"))
        rundir.manifest["server_identity"] = identity
        rundir.manifest |= empty_cache(scenario, options, target, rundir.manifest["warnings"])
        workers = options.workers or workers_for(scenario, plan)
        crew.recruit(workers)
        counters = LiveCounters.create(workers)
        stack.callback(counters.unlink)
        jobs = [job_of(scenario, options, rundir, counters, facts, kit, salt, n, workers) for n in range(workers)]
        crew.brief(jobs, rundir.journal_dir)
        rundir.manifest["environment"] = environment()  # while the workers prepare: nothing of the kind under load
        rundir.save_manifest()
        crew.wait_ready(counters)
        sampling.wait_ready()
    counters.unlink()  # all have it mapped; a name left behind would outlive a kill
    observer.load(scenario, target, counters, len(plan))
    try:
        course = conduct(crew, counters, window_of(scenario), scenario.load.drain, interrupts)
    finally:
        observer.done()
    observer.status("writing the results")
    rundir.manifest |= sampling.end()
    if options.probes and not course.interrupted:
        from servebench.run.probing import ask_probes

        observer.status("asking the greedy probes")
        rundir.manifest["probes"] = ask_probes(scenario, options, rundir, facts, interrupts)
        course.interrupted = rundir.manifest["probes"]["interrupted"]
    rundir.manifest["server_identity"] = ask_again(scenario, options, facts, identity)
    rundir.manifest["warnings"] += sampling.warnings
    _close(rundir, crew, counters, plan, course, target)
    if profiling is not None:
        from servebench.run.profiling import Occasion

        profiling.capture(Occasion(run, scenario, options, plan, target, facts.max_model_len, interrupts, observer))


def _close(
    rundir: RunDir,
    crew: Crew,
    counters: LiveCounters,
    plan: Plan,
    course: Course,
    target: Target,
) -> None:
    """Write what is known after the last request, and merge the journals."""
    manifest = rundir.manifest
    if (death := target.died()) is not None:
        manifest["warnings"].append(death)
    if dead := crew.dead(counters):
        manifest["warnings"] += [f"worker {number} died: {crew.last_words(number)}" for number in dead]
        record_losses(rundir, plan, counters.snapshot(), dead, course)
    manifest |= closing(course, crew.figures(rundir.journal_dir))
    rundir.save_manifest()
    _tidy(rundir, crew)
    rundir.finalise()


def _tidy(rundir: RunDir, crew: Crew) -> None:
    """Remove the processes' notes, now in the manifest, and keep what the workers wrote to their error output."""
    (rundir.journal_dir / "telemetry.json").unlink(missing_ok=True)
    for number in range(len(crew)):
        for name in (f"worker-{number}.json", f"worker-{number}.job.json"):
            (rundir.journal_dir / name).unlink(missing_ok=True)
        if text := crew.log(number):
            rundir.log_path(f"worker-{number}").write_text(without(text, rundir.secrets), "utf-8")
