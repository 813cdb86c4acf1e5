"""The steps of one run, between an empty run directory and a finished one."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from servebench.dispatch.conductor import Course, Interrupts, conduct
from servebench.dispatch.losses import record_losses
from servebench.record.counters import LiveCounters
from servebench.record.redaction import without
from servebench.run.asking import Identity, ask, ask_again, empty_cache
from servebench.run.manifest import closing, describe
from servebench.run.staff import job_of, window_of, workers_for
from servebench.run.target import Target, open_target

if TYPE_CHECKING:
    from servebench.dispatch.crew import Crew
    from servebench.engine.attach import EndpointFacts
    from servebench.profile.tool import Launch
    from servebench.record.rundir import RunDir
    from servebench.run.options import Observer, RunOptions
    from servebench.run.sampling import Sampling
    from servebench.scenario.schema import Scenario
    from servebench.workload.plan import Plan


@dataclass(slots=True)
class Execution:
    """One run. `prepare`, then `load`, then `finish`; an interruption before the load raises KeyboardInterrupt.

    Attributes:
        stack: ends what the run has started: the server, the shared memory.
        plan, target, facts: known once it is prepared.
    """

    scenario: Scenario
    options: RunOptions
    rundir: RunDir
    crew: Crew
    sampling: Sampling
    observer: Observer
    interrupts: Interrupts
    stack: ExitStack
    plan: Plan | None = None
    target: Target | None = None
    facts: EndpointFacts | None = None
    _identity: Identity | None = None
    _counters: LiveCounters | None = None

    def make_plan(self) -> None:
        """Fix and store what is to happen."""
        from servebench.workload.planning import make_plan

        self.observer.status("making the plan")
        with self.interrupts.raising():
            self.plan = make_plan(self.scenario)
            self.plan.write(self.rundir.plan_path)

    def open_target(self, launch: Launch | None) -> Target:
        """The server, until the stack is closed."""
        target = open_target(self.scenario, self.options, self.rundir, self.observer, self.interrupts, launch)
        return self.stack.enter_context(target)

    def prepare(self, target: Target) -> None:
        """Ask the server what it is, and get workers and sampler ready."""
        self.target = target
        self.observer.status("asking the server what it is")
        with self.interrupts.raising():
            self._brief(target)
            assert self._counters is not None
            self.crew.wait_ready(self._counters)
            self.sampling.wait_ready()
        self._counters.unlink()  # all have it mapped; a name left behind would outlive a kill

    def _brief(self, target: Target) -> None:
        from servebench.telemetry.host import environment

        scenario, options, rundir, plan = self.scenario, self.options, self.rundir, self.plan
        assert plan is not None
        facts, kit, self._identity = ask(scenario, options, target)
        self.facts = facts
        self.sampling.begin(scenario, rundir, facts, target)
        salt = options.salt if options.salt is not None else secrets.randbits(48)
        describe(rundir, scenario, options, plan, target, facts, kit, salt)
        target.simulated, target.random_weights = (rundir.manifest[key] for key in ("simulated", "random_weights"))
        rundir.manifest["server_identity"] = self._identity
        rundir.manifest |= empty_cache(scenario, options, target, rundir.manifest["warnings"])
        workers = options.workers or workers_for(scenario, plan)
        self.crew.recruit(workers)
        self._counters = counters = LiveCounters.create(workers)
        self.stack.callback(counters.unlink)
        jobs = [job_of(scenario, options, rundir, counters, facts, kit, salt, n, workers) for n in range(workers)]
        self.crew.brief(jobs, rundir.journal_dir)
        rundir.manifest["environment"] = environment()  # while the workers prepare: nothing of the kind under load
        rundir.save_manifest()

    def load(self) -> Course:
        """Run the load to its end."""
        scenario, counters = self.scenario, self._counters
        assert self.target is not None and self.plan is not None and counters is not None
        self.observer.load(scenario, self.target, counters, len(self.plan))
        try:
            return conduct(self.crew, counters, window_of(scenario), scenario.load.drain, self.interrupts)
        finally:
            self.observer.done()

    def finish(self, course: Course) -> None:
        """Ask what is asked after the load, write what is known, and merge the journals."""
        assert self.facts is not None and self._identity is not None
        manifest = self.rundir.manifest
        self.observer.status("writing the results")
        manifest |= self.sampling.end()
        if self.options.probes and not course.interrupted:
            manifest["probes"] = self._probe(self.facts)
            course.interrupted = manifest["probes"]["interrupted"]
        manifest["server_identity"] = ask_again(self.scenario, self.options, self.facts, self._identity)
        manifest["warnings"] += self.sampling.warnings
        self._note_deaths(course)
        manifest |= closing(course, self.crew.figures(self.rundir.journal_dir))
        self.rundir.save_manifest()
        self._tidy()
        self.rundir.finalise()

    def _probe(self, facts: EndpointFacts) -> dict[str, Any]:
        from servebench.run.probing import ask_probes

        self.observer.status("asking the greedy probes")
        return ask_probes(self.scenario, self.options, self.rundir, facts, self.interrupts)

    def _note_deaths(self, course: Course) -> None:
        assert self.target is not None and self.plan is not None and self._counters is not None
        warnings = self.rundir.manifest["warnings"]
        if (death := self.target.died()) is not None:
            warnings.append(death)
        if dead := self.crew.dead(self._counters):
            warnings += [f"worker {number} died: {self.crew.last_words(number)}" for number in dead]
            record_losses(self.rundir, self.plan, self._counters.snapshot(), dead, course)

    def _tidy(self) -> None:
        """Remove the processes' notes, now in the manifest, and keep what the workers wrote to their error output."""
        folder = self.rundir.journal_dir
        (folder / "telemetry.json").unlink(missing_ok=True)
        for number in range(len(self.crew)):
            for name in (f"worker-{number}.json", f"worker-{number}.job.json"):
                (folder / name).unlink(missing_ok=True)
            if text := self.crew.log(number):
                self.rundir.log_path(f"worker-{number}").write_text(without(text, self.rundir.secrets), "utf-8")
