"""One run, from a scenario to a run directory: the only place that ties engine, workload and dispatch together."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from servebench.dispatch.conductor import Interrupts
from servebench.dispatch.crew import Crew
from servebench.errors import UsageError
from servebench.record.place import Place, is_disk_error
from servebench.record.redaction import secrets_of
from servebench.run.execution import Execution
from servebench.run.manifest import opening
from servebench.run.options import Observer, RunOptions
from servebench.run.sampling import Sampling
from servebench.run.staff import check_workers
from servebench.run.target import Target

if TYPE_CHECKING:
    from servebench.record.rundir import RunDir
    from servebench.run.profiling import Profiling, Within
    from servebench.scenario.schema import Scenario

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
            execution = Execution(scenario, options, rundir, crew, sampling, observer, interrupts, stack)
            _execute(execution, within, profiling)
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


def _execute(execution: Execution, within: Within | None, profiling: Profiling | None) -> None:
    execution.make_plan()
    if profiling is not None:
        execution.stack.callback(profiling.close)  # before the server is opened, and so called after its end
    target = within.target if within else execution.open_target(profiling.launch if profiling else None)
    if profiling is not None:
        profiling.attach(execution, target)
    execution.prepare(target)
    execution.finish(execution.load())
    if profiling is not None:
        profiling.capture(run, execution)
