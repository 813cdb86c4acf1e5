"""Finds the Python of an environment that holds vLLM, which is never servebench's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from servebench.errors import EngineError

VARIABLE = "SERVEBENCH_VLLM_PYTHON"
CHECKOUT_PYTHON = Path(".venv-vllm", "bin", "python")
INSPECTION = (
    "import importlib.util as u, sys\n"
    "missing = [n for n in ('vllm', 'torch', 'transformers') if u.find_spec(n) is None]\n"
    "sys.exit('no ' + ', '.join(missing) + ' there') if missing else None\n"
)
THREE_WAYS = (
    "three ways on: install one with scripts/install-vllm, or name the Python of an environment that has vLLM "
    f"with --vllm-python or {VARIABLE}; test a server that runs already with --endpoint URL; "
    "or use the simulated engine with --endpoint sim"
)


def find_vllm_python(
    named: str | Path | None = None, environ: Mapping[str, str] | None = None, checkout: Path | None = None
) -> Path:
    """Return the Python that can import vLLM.

    Looked for in this order: `named` (``--vllm-python``), ``SERVEBENCH_VLLM_PYTHON``, the interpreter of the ``vllm``
    command on PATH, ``.venv-vllm`` in the checkout. One that is named outright must hold; the search does not go on.

    Args:
        named: a Python, or the directory of a virtual environment.
        environ: where the variables are looked up; the process's own by default.
        checkout: the directory that may hold ``.venv-vllm``; by default that of the checkout servebench runs from,
            or the working directory.

    Raises:
        EngineError: nothing was found, or what was named is no Python with vLLM.
    """
    environ = os.environ if environ is None else environ
    for choice, origin in ((named, "--vllm-python"), (environ.get(VARIABLE), VARIABLE)):
        if choice:
            return _checked(_python_of(Path(choice)), origin)
    roots = [checkout] if checkout is not None else [_source_checkout(), Path.cwd()]
    on_path = _python_on_path(environ)
    for python in [on_path, *(root / CHECKOUT_PYTHON for root in roots)]:
        if python is not None and _why_not(python) is None:
            return _absolute(python)
    raise EngineError(f"no vLLM found; {THREE_WAYS}")


def _python_of(path: Path) -> Path:
    """Accept the directory of a virtual environment for its Python."""
    return path / "bin" / "python" if path.is_dir() else path


def _absolute(path: Path) -> Path:
    """Make absolute without resolving links: a virtual environment's Python is one, and its path is its identity."""
    return Path(os.path.abspath(path.expanduser()))


def _checked(python: Path, origin: str) -> Path:
    python = _absolute(python)
    reason = _why_not(python)
    if reason is not None:
        raise EngineError(f"{origin}: {python} cannot serve vLLM: {reason}; {THREE_WAYS}")
    return python


def _why_not(python: Path) -> str | None:
    """Return why this Python cannot serve vLLM, or None. Imports nothing there, so it takes milliseconds."""
    if not os.access(python, os.X_OK) or python.is_dir():
        return "it is no executable file"
    try:
        done = subprocess.run([python, "-c", INSPECTION], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _python_on_path(environ: Mapping[str, str]) -> Path | None:
    """Return the interpreter in the first line of the ``vllm`` script on PATH."""
    script = shutil.which("vllm", path=environ.get("PATH", os.defpath))
    if script is None:
        return None
    beside = Path(script).resolve().parent / "python"
    with Path(script).open("rb") as file:
        first = file.readline(4096).decode(errors="replace")
    interpreter = first[2:].split()[0] if first.startswith("#!") and first[2:].split() else ""
    if Path(interpreter).name.startswith("python"):
        return Path(interpreter)
    return beside if beside.exists() else None


def _source_checkout() -> Path:
    """Return the root of the source tree this module lies in (src/servebench/engine/locate.py)."""
    return Path(__file__).resolve().parents[3]
