"""The live view: what a run is doing right now, painted a few times a second on stderr from the shared counters."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from servebench.record.columns import FAILURES, Outcome
from servebench.record.counters import Command, Slot, Snapshot, State, bucket_quantile

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

PAINT_EVERY_S = 0.25
LINE_EVERY_S = 5.0
WINDOW_S = 10.0
SILENT_S = 3.0
BAR_WIDTH = 30
LAG_WARN_US = 5_000
CPU_WARN = 0.8

_NS = 1e9
_QUANTILES = ((50, 100), (99, 100))

Source = Callable[[], Snapshot]


@dataclass(frozen=True, slots=True)
class LivePlan:
    """What the run means to do.

    Attributes:
        name: of the scenario.
        target: server and model, as people should read it.
        labels: warnings that belong to every figure: "SIMULATED", "RANDOM WEIGHTS".
        requests: number of requests where a count ends the run; None where the clock does.
        warmup_s: length of the warm-up.
        measured_s: length of the measured phase; None where a count ends the run.
        open_loop: True where requests have due times, so that there is an offered rate.
    """

    name: str
    target: str
    labels: tuple[str, ...] = ()
    requests: int | None = None
    warmup_s: float = 0.0
    measured_s: float | None = None
    open_loop: bool = True


@dataclass(frozen=True, slots=True)
class Figures:
    """What is shown, from the snapshots of the last seconds. Rates are per second; None where nothing is known yet.

    Attributes:
        now: the latest snapshot.
        phase: "starting", "warm-up", "measured", "cool-down", "draining" or "done".
        elapsed_s: since the start of the load.
        done: share of the run that is over, 0 to 1.
        offered, sent, finished, tokens: rates over the last 10 s: due, dispatched and finished requests, token events.
        recent, whole: metric → (p50, p99) in ns, over the last 10 s and the whole run.
        cpu: busiest worker's share of one core over the last 10 s.
        silent: worker → seconds without a sign of life, where that is too long.
    """

    now: Snapshot
    phase: str
    elapsed_s: float
    done: float
    offered: float | None
    sent: float | None
    finished: float | None
    tokens: float | None
    recent: dict[str, tuple[int | None, int | None]]
    whole: dict[str, tuple[int | None, int | None]]
    cpu: float | None
    silent: dict[int, float]

    @property
    def failures(self) -> dict[Outcome, int]:
        """Failed requests by kind, those that occurred only."""
        return {outcome: count for outcome, count in self.now.outcomes.items() if count and outcome in FAILURES}


def figures(plan: LivePlan, before: Snapshot, now: Snapshot) -> Figures:
    """Derive what is shown from two snapshots; `before` is the oldest one of the window, or `now` itself."""
    elapsed = 0.0 if now.start_monotonic_ns is None else (now.monotonic_ns - now.start_monotonic_ns) / _NS
    return Figures(
        now=now,
        phase=_phase(plan, now, elapsed),
        elapsed_s=max(0.0, elapsed),
        done=_done(plan, now, elapsed),
        offered=_rate(before, now, Slot.SCHEDULED) if plan.open_loop else None,
        sent=_rate(before, now, Slot.DISPATCHED),
        finished=_rate(before, now, Slot.FINISHED),
        tokens=_rate(before, now, Slot.TOKENS),
        recent={name: _quantiles(name, now, before) for name in ("ttft", "itl")},
        whole={name: _quantiles(name, now, None) for name in ("ttft", "itl")},
        cpu=_cpu(before, now),
        silent=_silent(now),
    )


def _phase(plan: LivePlan, now: Snapshot, elapsed: float) -> str:
    states = now.states
    if all(state is State.DONE for state in states):
        return "done"
    if now.command >= Command.DRAIN or all(state >= State.DRAINING for state in states):
        return "draining"
    if now.start_monotonic_ns is None or elapsed < 0:
        return "starting"
    if elapsed < plan.warmup_s:
        return "warm-up"
    return "measured" if plan.measured_s is None or elapsed < plan.warmup_s + plan.measured_s else "cool-down"


def _done(plan: LivePlan, now: Snapshot, elapsed: float) -> float:
    by_count = now.total(Slot.FINISHED) / plan.requests if plan.requests else 0.0
    span = plan.warmup_s + plan.measured_s if plan.measured_s is not None else 0.0
    by_time = elapsed / span if span else 0.0
    return min(1.0, max(0.0, by_count, by_time))


def _seconds(before: Snapshot, now: Snapshot) -> float:
    return (now.monotonic_ns - before.monotonic_ns) / _NS


def _rate(before: Snapshot, now: Snapshot, slot: Slot) -> float | None:
    seconds = _seconds(before, now)
    return (now.total(slot) - before.total(slot)) / seconds if seconds > 0 else None


def _quantiles(metric: str, now: Snapshot, before: Snapshot | None) -> tuple[int | None, int | None]:
    counts = now.histogram(metric) if before is None else now.histogram(metric) - before.histogram(metric)
    low, high = (bucket_quantile(counts, *quantile) for quantile in _QUANTILES)
    return low, high


def _cpu(before: Snapshot, now: Snapshot) -> float | None:
    seconds = _seconds(before, now)
    used = now.workers[:, Slot.CPU_NS] - before.workers[:, Slot.CPU_NS]
    return float(used.max()) / _NS / seconds if seconds > 0 else None


def _silent(now: Snapshot) -> dict[int, float]:
    ages = (now.monotonic_ns - now.workers[:, Slot.HEARTBEAT_NS]) / _NS
    working = (State.RUNNING, State.DRAINING)
    return {n: float(ages[n]) for n, state in enumerate(now.states) if state in working and ages[n] > SILENT_S}


class Window:
    """The snapshots of the last seconds."""

    def __init__(self, seconds: float = WINDOW_S) -> None:
        self._span_ns = int(seconds * _NS)
        self._kept: deque[Snapshot] = deque()

    def add(self, snapshot: Snapshot) -> Snapshot:
        """Keep a snapshot; return the oldest one that is still inside the window."""
        self._kept.append(snapshot)
        while self._kept[0].monotonic_ns < snapshot.monotonic_ns - self._span_ns:
            self._kept.popleft()
        return self._kept[0]


def paint(plan: LivePlan, shown: Figures) -> Text:
    """The view for a terminal: seven lines, each cut to its width."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ellipsis")
    _title(text, plan)
    _progress(text, plan, shown)
    _field(text, "rate", _rates(shown))
    for name, unit in (("ttft", "TTFT"), ("itl", "ITL")):
        recent, whole = _pair(shown.recent[name]), _pair(shown.whole[name])
        _field(text, unit, f"last {WINDOW_S:.0f} s {recent:<28}run {whole}")
    _field(text, "requests", _requests(shown), "red" if shown.failures else "")
    _field(text, "client", _client(shown), "yellow" if _strained(shown) else "")
    text.rstrip()
    return text


def _title(text: Text, plan: LivePlan) -> None:
    for label in plan.labels:
        text.append(f" {label} ", "bold black on yellow").append(" ")
    text.append(plan.name, "bold").append(f"  {plan.target}\n", "dim")


def _progress(text: Text, plan: LivePlan, shown: Figures) -> None:
    full = round(BAR_WIDTH * shown.done)
    text.append(f"{shown.phase:<10}", "bold").append("━" * full, "green").append("━" * (BAR_WIDTH - full), "dim")
    text.append(f" {_clock(shown.elapsed_s)}{_end(plan)}  {shown.now.total(Slot.IN_FLIGHT)} in flight\n")


def _field(text: Text, name: str, value: str, style: str = "") -> None:
    text.append(f"{name:<10}", "dim").append(value + "\n", style)


def line(plan: LivePlan, shown: Figures) -> str:
    """The view for a log: one line."""
    parts = [
        *plan.labels,
        f"{_clock(shown.elapsed_s)}{_end(plan)} {shown.phase}",
        f"{shown.now.total(Slot.IN_FLIGHT)} in flight",
        _requests(shown),
        _rates(shown),
        f"TTFT {_pair(shown.recent['ttft'])}",
        f"ITL {_pair(shown.recent['itl'])}",
        _client(shown),
    ]
    return " | ".join(parts)


def _end(plan: LivePlan) -> str:
    if plan.measured_s is not None:
        return f"/{_clock(plan.warmup_s + plan.measured_s)}"
    return f" of {plan.requests} requests" if plan.requests else ""


def _rates(shown: Figures) -> str:
    rates = [("offered", shown.offered), ("sent", shown.sent), ("done", shown.finished)]
    words = [f"{name} {value:.1f}/s" for name, value in rates if value is not None]
    return "  ".join(words + ([f"{shown.tokens:,.0f} tokens/s"] if shown.tokens is not None else []))


def _requests(shown: Figures) -> str:
    now, outcomes = shown.now, shown.now.outcomes
    words = [f"{now.total(Slot.DISPATCHED)} sent", f"{outcomes[Outcome.OK]} ok"]
    words += [f"{count} {outcome}" for outcome, count in shown.failures.items()]
    words += [f"{outcomes[Outcome.DROPPED]} dropped"] if outcomes[Outcome.DROPPED] else []
    paused = now.total(Slot.PAUSED)
    return "  ".join(words + ([f"{paused} slots paused"] if paused else []))


def _client(shown: Figures) -> str:
    now = shown.now
    words = [
        *(f"worker {number} silent for {age:.0f} s" for number, age in shown.silent.items()),
        f"lag {_duration(now.peak(Slot.LOOP_LAG_US) * 1000)} (max {_duration(now.peak(Slot.LOOP_LAG_MAX_US) * 1000)})",
        f"late {_duration(now.peak(Slot.LATE_US) * 1000)} (max {_duration(now.peak(Slot.LATE_MAX_US) * 1000)})",
        *([f"cpu {shown.cpu:.0%}"] if shown.cpu is not None else []),
        *([f"backlog {now.total(Slot.BACKLOG)}"] if now.total(Slot.BACKLOG) else []),
    ]
    return "  ".join(words)


def _strained(shown: Figures) -> bool:
    lagging = shown.now.peak(Slot.LOOP_LAG_US) > LAG_WARN_US
    return lagging or bool(shown.silent) or (shown.cpu is not None and shown.cpu > CPU_WARN)


def _pair(quantiles: tuple[int | None, int | None]) -> str:
    low, high = quantiles
    return "no data yet" if low is None or high is None else f"p50 {_duration(low)}  p99 {_duration(high)}"


def _duration(ns: int) -> str:
    """A duration to about three digits, in ms or s."""
    if ns >= 10_000_000_000:
        return f"{ns / 1e9:.1f} s"
    if ns >= 1_000_000_000:
        return f"{ns / 1e9:.2f} s"
    return f"{ns / 1e6:.0f} ms" if ns >= 100_000_000 else f"{ns / 1e6:.1f} ms"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:02d}:{rest:02d}"


class LiveView:
    """Shows a run while it lasts; a context manager, quiet outside of it.

    On a terminal the view is painted in place and is gone at the end; elsewhere it is one line every five seconds.

    Args:
        console: where to; stderr by default.
        quiet: show nothing at all.
    """

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        if console is None:
            from rich.console import Console

            console = Console(stderr=True, highlight=False)
        self._console = console
        self._quiet = quiet
        self._terminal = console.is_terminal and not console.is_dumb_terminal
        self._status = ""
        self._run: tuple[LivePlan, Source, Window] | None = None
        self._live: Live | None = None
        self._end = threading.Event()
        self._painter = threading.Thread(target=self._paint_until_end, name="live-view", daemon=True)

    def __enter__(self) -> Self:
        if not self._quiet:
            self._open_terminal()
            self._painter.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        try:
            if self._painter.is_alive():
                self._painter.join()
        finally:
            self._close_terminal()

    def status(self, text: str) -> None:
        """Say what is being waited for before there is any load (a server that starts, a plan that is made)."""
        if not self._quiet and not self._terminal and text != self._status:
            self._print(text)
        self._status = text

    def note(self, text: str) -> None:
        """Print a line that stays, above the view."""
        if not self._quiet:
            self._print(text)

    def attach(self, plan: LivePlan, source: Source) -> None:
        """Show the load from now on.

        Args:
            plan: what the run means to do.
            source: gives a fresh snapshot; called from another thread, a few times a second.
        """
        self._run = (plan, source, Window())

    def detach(self) -> None:
        """Show the load no more; the counters may go."""
        self._run = None

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=not self._terminal)

    def _open_terminal(self) -> None:
        if self._terminal:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._live.start()

    def _close_terminal(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _paint_until_end(self) -> None:
        try:
            while not self._end.wait(PAINT_EVERY_S if self._terminal else LINE_EVERY_S):
                self.refresh()
        except Exception as error:  # noqa: BLE001 a view that breaks must not take the run along
            self._close_terminal()
            self._print(f"the live view stopped: {type(error).__name__}: {error}")

    def refresh(self) -> None:
        """Show the present state once."""
        shown = self._figures()
        if self._live is not None:
            self._live.update(self._waiting() if shown is None else paint(*shown), refresh=True)
        elif shown is not None:
            self._print(line(*shown))

    def _waiting(self) -> Text:
        from rich.text import Text

        return Text(self._status, no_wrap=True, overflow="ellipsis")

    def _figures(self) -> tuple[LivePlan, Figures] | None:
        if self._run is None:
            return None
        plan, source, window = self._run
        now = source()
        return plan, figures(plan, window.add(now), now)
