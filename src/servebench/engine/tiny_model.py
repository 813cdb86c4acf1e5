"""The built-in model `tiny-random`: made once by the server environment's own libraries, then kept in the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from servebench.engine.interrupted import LaunchInterruptedError
from servebench.errors import EngineError

NAME = "tiny-random"
MARKER = "RANDOM_WEIGHTS"
BUILDER = Path(__file__).with_name("tiny_model_builder.py")
MAKING_LIMIT_S = 600.0


def ensure_tiny_model(python: Path, should_stop: Callable[[], bool] | None = None) -> Path:
    """Return the folder of `tiny-random`, making it first where it is missing (seconds, no download).

    The folder's name holds a hash of all that decides its content: the builder and the version of `python`, on whose
    standard library the tokenizer is trained. Processes that make it at the same time do no harm: the first one to
    finish wins.

    Args:
        python: of the environment that has torch, tokenizers and transformers.
        should_stop: asked now and then while it is made; true ends the making.

    Raises:
        EngineError: it could not be made.
        LaunchInterruptedError: `should_stop` said so.
    """
    folder = cache_root() / "models" / f"{NAME}-v1-{_identity(python)}"
    if (folder / MARKER).exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _make(python, folder, should_stop)
    except OSError as error:
        raise EngineError(f"cannot make the model {NAME} in {folder}: {error.strerror or error}") from None
    return folder


def has_random_weights(model: str | Path) -> bool:
    """Whether `model` is a folder marked as holding random weights."""
    return (Path(model) / MARKER).is_file()


def cache_root() -> Path:
    """Return ``$XDG_CACHE_HOME/servebench``, by default ``~/.cache/servebench``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "servebench"


def _identity(python: Path) -> str:
    """Return 12 hexadecimal digits for the builder and the Python that runs it."""
    version = subprocess.run([python, "-c", "import sys; print(sys.version)"], capture_output=True, check=False)
    if version.returncode != 0:
        raise EngineError(f"{python} does not run: {version.stderr.decode(errors='replace').strip()}")
    return hashlib.sha256(BUILDER.read_bytes() + version.stdout).hexdigest()[:12]


def _make(python: Path, folder: Path, should_stop: Callable[[], bool] | None) -> None:
    """Build in a folder beside the right one and rename it: it is there whole or not at all."""
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _build(python, unfinished, should_stop)
        unfinished.chmod(0o755)  # mkdtemp's 0700 would lock out a server that runs as another user
        unfinished.rename(folder)
    except OSError:
        if not (folder / MARKER).exists():  # otherwise another process was quicker
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _build(python: Path, folder: Path, should_stop: Callable[[], bool] | None) -> None:
    log = folder / "build.log"
    # Through standard input: as a file it would put our folder, with its vllm.py, on that Python's search path.
    with log.open("wb") as output, BUILDER.open("rb") as source:
        builder = subprocess.Popen(
            [python, "-", folder],
            cwd=folder,
            stdin=source,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"},
        )
    try:
        _wait(builder, should_stop)
    finally:
        builder.kill()
        builder.wait()
    if builder.returncode != 0:
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or [f"exit code {builder.returncode}"]
        raise EngineError(f"cannot make the model {NAME} with {python}: {last[0]}")
    log.unlink()


def _wait(builder: subprocess.Popen[bytes], should_stop: Callable[[], bool] | None) -> None:
    for _ in range(int(MAKING_LIMIT_S / 0.1)):
        try:
            builder.wait(0.1)
        except subprocess.TimeoutExpired:
            if should_stop is not None and should_stop():
                raise LaunchInterruptedError(f"the making of the model {NAME} was interrupted") from None
        else:
            return
    raise EngineError(f"the making of the model {NAME} did not end within {MAKING_LIMIT_S:.0f} s")
