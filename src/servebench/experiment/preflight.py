"""What is checked of all cells before the first one runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from servebench.scenario.schema import Scenario


def check_servers(scenarios: Sequence[Scenario], endpoint: str, vllm_python: Path | None = None) -> None:
    """Ask the vLLM that will be launched whether it knows the flags of every scenario; other servers ask nothing.

    Args:
        scenarios: of the cells.
        endpoint: of the experiment; only "vllm" is launched with flags.
        vllm_python: as ``--vllm-python`` names it; None searches as a run does.

    Raises:
        UsageError: a flag that this vLLM lacks, with its version and the nearest flag that it has.
        EngineError: there is no vLLM, or its help cannot be had.
    """
    from servebench.engine.locate import find_vllm_python
    from servebench.engine.vllm_help import check_flags

    if endpoint != "vllm":
        return
    python = find_vllm_python(vllm_python)
    checked: list[dict[str, object]] = []
    for scenario in scenarios:
        flags = scenario.engine.vllm.flags if scenario.engine.vllm is not None else {}
        if flags not in checked:
            check_flags(flags, python)
            checked.append(dict(flags))
