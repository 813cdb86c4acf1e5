"""What the answers of a window say, as sentences that an experiment can prove wrong, each with that experiment.

A finding is {"code", "sentence", "evidence": {name: figure}, "next"}. It is a function of the answers alone, and there
is none without the figures that it rests on. Limits are constants with their reasons; times in ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from servebench.analysis.profile import findings_device, findings_host, findings_steps, findings_tools

Document = Mapping[str, Any]
Finding = dict[str, Any]

# In this order they are told: is the window what it should be, where does the step's time go, what would help.
RULES: tuple[Callable[[Document], Iterator[Finding]], ...] = (
    findings_tools.sanitizer,
    findings_steps.traffic_missed,
    findings_steps.client_idle,
    findings_steps.capture_overhead,
    findings_device.host_late,
    findings_device.dependency,
    findings_device.copy_or_sync,
    findings_device.low_busy,
    findings_steps.interference,
    findings_device.exposed_communication,
    findings_device.rank_skew,
    findings_device.exposed_copies,
    findings_device.tiny_kernels,
    findings_steps.hot_part,
    findings_tools.roofs,
    findings_host.operators,
    findings_host.outside_operators,
    findings_host.thread_waits,
    findings_host.system_calls,
    findings_host.hot_function,
)


def findings(answers: Document) -> list[Finding]:
    """All findings of a window's answers (which need no "findings" yet)."""
    return [found for rule in RULES for found in rule(answers)]
