"""The checks of a comparison as a whole: were the runs what they were meant to be, and may the effects be believed?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from servebench.experiment.ab.schedule import NOT_RUN
from servebench.experiment.caches import cache_state
from servebench.experiment.comparison.correctness import NEAR_TIES, NOT_JUDGED, SAME
from servebench.experiment.comparison.differences import Difference, differences
from servebench.experiment.comparison.effect import BETTER, WORSE, Effect
from servebench.experiment.comparison.sides import doubts_of, is_simulated
from servebench.experiment.findings import FAIL, OK, WARN, Code, brief, code, shorten

if TYPE_CHECKING:
    from servebench.experiment.ab.schedule import Schedule
    from servebench.experiment.cell import Outcome
    from servebench.experiment.comparison.run_sets import RunSet

Document = dict[str, Any]
AGAIN_HINT = "start the same command again with --out and --retry-failed"


def of_ab(
    schedule: Schedule,
    effects: Mapping[str, Sequence[Effect]],
    noise: Document | None,
    found: Sequence[Document],
    correctness: Document | None,
) -> list[Code]:
    """All checks of an A/B experiment."""
    used = [outcome for outcomes in schedule.used.values() for outcome in outcomes]
    return [
        *_lost(schedule),
        *_plans(schedule),
        *mixed(used),
        *([doubts(used)] if used else []),
        *reach(effects),
        *(_of_used(schedule, noise, found, correctness) if used else []),  # nothing good is said of no runs
    ]


def _of_used(
    schedule: Schedule, noise: Document | None, found: Sequence[Document], correctness: Document | None
) -> list[Code]:
    """What is checked of the runs that count, of which there are some."""
    used = [outcome for outcomes in schedule.used.values() for outcome in outcomes]
    compared = [arm.name for arm in schedule.design.running[1:] if schedule.pairs(arm.name)]
    return [
        one_variable(found, {name: schedule.design.variables(name) for name in compared}),
        *no_change(schedule.unchanged()),
        changed(schedule.used),
        caches(used),
        noise_of(noise),
        answers(correctness),
    ]


def _lost(schedule: Schedule) -> list[Code]:
    """Which runs are missing, and whether any pair is left."""
    design, codes = schedule.design, []
    waiting = [each for each in schedule.lost if each["reason"] == NOT_RUN]
    gone = [each for each in schedule.lost if each["reason"] != NOT_RUN]
    whole = design.repeats * len(design.running)
    if waiting:
        step = "start the same command again with --out to go on"
        codes.append(code("runs.missing", WARN, f"{len(waiting)} of {whole} runs have not ended yet", step))
    if gone:
        text = f"{len(gone)} of {whole} runs are lost: {shorten(_why(each) for each in gone)}"
        codes.append(code("runs.lost", WARN, text, AGAIN_HINT))
    if not schedule.lost:
        codes.append(code("runs.lost", OK, f"all {whole} runs are there and can be compared"))
    for arm in design.candidates:
        if not schedule.pairs(arm.name):
            text = f"no pair of {design.base.name} and {arm.name} can be compared"
            codes.append(code("pairs.none", FAIL, text, AGAIN_HINT))
    return codes


def _why(lost: Document) -> str:
    return f"{lost['cell']}: {lost['reason']}"


def _plans(schedule: Schedule) -> list[Code]:
    """A repeat's arms must have been sent the same."""
    unequal = [cand.cell.name for arm in schedule.design.running[1:] for _, cand in schedule.unequal(arm.name)]
    if not unequal:
        if not any(schedule.pairs(arm.name) for arm in schedule.design.running[1:]):
            return []
        return [code("pairs.plan", OK, "all arms of a repeat were sent the same requests at the same instants")]
    text = f"{shorten(unequal)}: the plan is another one than the base's, so that there is no pair"
    return [code("pairs.plan", FAIL, text, "change the server between arms, not the workload")]


def mixed(outcomes: Sequence[Outcome]) -> list[Code]:
    """Simulated and real runs must not meet."""
    kinds = {is_simulated(outcome) for outcome in outcomes}
    if len(kinds) < 2:
        return []
    return [code("runs.mixed", FAIL, "some runs are simulated and some are not", "compare like with like")]


def doubts(outcomes: Sequence[Outcome]) -> Code:
    """Whether runs that are used are SUSPECT themselves."""
    suspect = sum(outcome.verdict == "SUSPECT" for outcome in outcomes)
    if not suspect:
        return code("runs.suspect", OK, f"all {len(outcomes)} runs that are used are VALID")
    why = shorten(f"{name} in {number}" for name, number in doubts_of(outcomes).items())
    text = f"{suspect} of {len(outcomes)} runs that are used are SUSPECT: {why}"
    return code("runs.suspect", WARN, text, "the runs' own reports say what to do")


def reach(effects: Mapping[str, Sequence[Effect]]) -> list[Code]:
    """Whether the primary figure could have been decided at all."""
    blind = [(name, each[0]) for name, each in effects.items() if each and each[0].p is None]
    if not blind:
        return [code("design.reach", OK, "so many runs can reach the level")]
    name, primary = blind[0]
    text = f"{name}: {primary.figure}, the primary figure, has no p: {primary.reason}"
    elsewhere = any(each.ratio is not None for each in effects[name])
    lacking = primary.kind != "ratio" or (primary.ratio is None and elsewhere)
    step = "take a --primary that every run has, above 0" if lacking else "more runs of each"
    return [code("design.reach", WARN, text, step)]


def one_variable(found: Sequence[Document], variables: Mapping[str, Sequence[str]]) -> Code:
    """Whether anything differs between base and arm that nobody named."""
    other = [each for each in found if not each["named"] and each["kind"] != "observed"]
    if other:
        what = shorten(f"{each['key']} ({brief(each['base'])} and {brief(each['cand'])})" for each in other)
        text = f"more than the arms' own settings differs: {what}"
        return code("arms.one_variable", WARN, text, "make these equal, or the effect cannot be told from theirs")
    if not variables:
        return code("arms.one_variable", OK, "what differs between the arms is not known: there is no pair")
    several = [f"{name} ({', '.join(keys)})" for name, keys in variables.items() if len(keys) > 1]
    if several:
        text = f"arms that change several things at once, which share the effect: {shorten(several)}"
        return code("arms.one_variable", OK, text)
    return code("arms.one_variable", OK, "nothing but the arms' own settings differs between them")


def no_change(unchanged: Mapping[str, Sequence[str]]) -> list[Code]:
    """Whether the server says that what an arm was to change is as it was, such as after a hook without effect."""
    if not unchanged:
        return []
    what = shorten(f"{arm}: {', '.join(told)}" for arm, told in unchanged.items())
    text = f"the change did not come about, by the server's own word: {what}, as in the base"
    return [code("arms.no_change", WARN, text, "look at what the hook command does")]


def several(found: Sequence[Document]) -> Code:
    """Whether more than one thing differs between two sets of runs, so that none of them can be given the effect."""
    sets = [each for each in found if each["kind"] != "observed"]
    what = shorten(f"{each['key']} ({brief(each['base'])} and {brief(each['cand'])})" for each in sets)
    if len(sets) > 1:
        text = f"{len(sets)} things differ between the sets, which share the effect: {what}"
        return code("arms.one_variable", WARN, text, "change one thing at a time")
    return code("arms.one_variable", OK, f"one thing differs: {what}" if sets else "nothing that is known differs")


def changed(used: Mapping[str, Sequence[Outcome]]) -> Code:
    """Whether an arm stayed the same from its first run that is used to its last."""
    found = {(arm, each.key): each for arm, outcomes in used.items() for each in _later(outcomes)}
    if not found:
        return code("arms.changed", OK, "every arm stayed the same from its first run to its last")
    what = shorten(f"{arm}: {key} ({brief(each.a)}, then {brief(each.b)})" for (arm, key), each in found.items())
    return code(
        "arms.changed", WARN, f"changed between the runs of an arm: {what}", "repeat it with all else left alone"
    )


def _later(outcomes: Sequence[Outcome]) -> Iterator[Difference]:
    """What differs between the first of the runs and the others, apart from what only follows from something else."""
    for outcome in outcomes[1:]:
        found = differences(outcomes[0].manifest or {}, outcome.manifest or {})
        yield from (each for each in found if each.sets)


def lost_cells(sets: Sequence[RunSet]) -> list[Code]:
    """Cells of an experiment's arm that have no run."""
    lost = [f"{cell.cell.name}: {cell.reason}" for each in sets for cell in each.lost]
    return [code("runs.lost", WARN, f"lost: {shorten(lost)}", "run what failed once more")] if lost else []


def caches(outcomes: Sequence[Outcome]) -> Code:
    """Whether every run began with an empty prefix cache: by the server's word, and by its own hit counters."""
    states = {outcome.cell.name: cache_state(outcome.manifest, outcome.summary) for outcome in outcomes}
    warm = [name for name, state in states.items() if state.verified is False]
    if warm:
        text = f"{shorten(warm)}: prompts were found in the prefix cache beyond what the scenario intends"
        return code("caches.empty", WARN, text, "--reset-caches, or a server started for each run")
    verified = sum(state.verified is True for state in states.values())
    emptied = sum(state.done for state in states.values())
    text = f"the prefix cache was empty before {emptied} of {len(states)} runs, verified by its hits in {verified}"
    return code("caches.empty", OK, text, "" if emptied == len(states) else "--reset-caches empties it before each run")


def noise_of(noise: Document | None) -> Code:
    """Whether the A/A arms are as equal as they should be."""
    if noise is None:
        return code("noise.aa", OK, "the noise between equal arms was not measured", "--aa measures it")
    unequal = [each["figure"] for each in noise["effects"] if each["verdict"] in (BETTER, WORSE)]
    if unequal:
        text = f"two equal arms differ in {shorten(unequal)}: something besides the arms moves the figures"
        return code("noise.aa", WARN, text, "look for what changes with time or order: heat, caches, other load")
    return code("noise.aa", OK, "two equal arms do not differ by more than chance")


def answers(correctness: Document | None) -> Code:
    """Whether the arms give the same answers; questions that were asked and settle nothing are a doubt."""
    if correctness is None or correctness["verdict"] == NOT_JUDGED:
        return _not_judged(correctness or {})
    if silent := _silent(correctness["arms"]):
        text = f"probes were left without an answer that another arm answered: {shorten(silent)}"
        return code("correctness.answers", WARN, text, "probes.json of its runs says why")
    if correctness["verdict"] == SAME:
        return code("correctness.answers", OK, "the arms answer alike")
    if correctness["verdict"] == NEAR_TIES:
        return code("correctness.answers", OK, f"the arms answer alike but for near-ties: {correctness['reason']}")
    text = "the arms' answers differ by more than one arm's own do from run to run"
    return code("correctness.answers", WARN, text, "a speed-up that changes answers is no speed-up: look at them first")


def _not_judged(correctness: Document) -> Code:
    asked, reason = correctness.get("probes"), correctness.get("reason")
    text = f"whether the arms answer alike was not judged{f': {reason}' if reason else ''}"
    step = "look at the answers that differ, or repeat with what is missing" if asked else ""
    return code("correctness.answers", WARN if asked else OK, text, step)


def _silent(arms: Mapping[str, Document]) -> list[str]:
    """The arms that answered a smaller share of their probes than the best one did."""
    shares = {name: arm["answered"] / arm["asked"] for name, arm in arms.items() if arm["asked"]}
    lacking = [name for name, share in shares.items() if share < max(shares.values())]
    return [f"{name} answered {arms[name]['answered']} of {arms[name]['asked']}" for name in lacking]
