"""A libnvidia-ml.so.1 that plays a script, for tests of GPU telemetry on machines without a GPU.

`install` puts it, with a script, where a test wants it, and compiles it once a process. The path goes to
`NvmlSource(library=)` or `SamplerJob.nvml_library`. `StubClock` stops the clock of a stub that this process has loaded.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Self

from servebench.testing.nvml_stub.script import (
    DEFAULTS,
    FOREVER,
    GIB,
    Points,
    StubError,
    StubGpu,
    StubMachine,
    StubProcess,
    integral,
)

__all__ = [
    "DEFAULTS",
    "FOREVER",
    "GIB",
    "Points",
    "StubClock",
    "StubError",
    "StubGpu",
    "StubMachine",
    "StubProcess",
    "build",
    "install",
    "integral",
]

NAME = "libnvidia-ml.so.1"
SOURCES = ("stub.c", "telemetry.c", "script.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O1", "-std=gnu11", "-fPIC", "-shared", f"-Wl,-soname,{NAME}", "-Wl,-Bsymbolic")

_HERE = Path(__file__).parent
_folders: list[tempfile.TemporaryDirectory[str]] = []  # they go when the process ends


def build(folder: str | Path, *extra: str) -> Path:
    """Compile the stub into `folder`, with `extra` flags for the compiler, and return the library's path.

    Raises:
        RuntimeError: there is no C compiler, or it fails.
    """
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise RuntimeError(f"the NVML stub needs a C compiler ({', '.join(COMPILERS)})")
    library = Path(folder) / NAME
    sources = [str(_HERE / name) for name in SOURCES]
    command = [compiler, *FLAGS, *extra, "-o", str(library), *sources, "-lm", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the NVML stub does not compile: {done.stderr}")
    return library


@cache
def _built() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="nvml-stub-")
    _folders.append(folder)
    return build(folder.name)


def install(machine: StubMachine, folder: str | Path) -> Path:
    """Put a library that plays `machine` into `folder` and return its path.

    A process that loads several needs several folders. Raises RuntimeError, as `build` does.
    """
    library = Path(folder) / NAME
    shutil.copyfile(_built(), library)
    library.with_name(f"{NAME}.script").write_text(machine.text())
    return library


class StubClock:
    """The clock of a stub that is loaded into this process, taken out of time's hands.

    Calling it gives the stub's seconds, so it can be the source's own clock, too.
    """

    def __init__(self, library: str | Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.nvmlStubSetTime.argtypes = [ctypes.c_double]
        self._library.nvmlStubTime.restype = ctypes.c_double
        self._library.nvmlStubAsked.argtypes = [ctypes.c_uint, ctypes.c_char_p]
        self._library.nvmlStubAsked.restype = ctypes.c_ulong

    def set(self, seconds: float) -> Self:
        """Make it `seconds` since nvmlInit, until told otherwise; after nvmlInit, which starts the clock again."""
        self._library.nvmlStubSetTime(seconds)
        return self

    def __call__(self) -> float:
        return float(self._library.nvmlStubTime())

    def asked(self, gpu: int, key: str) -> int:
        """How often the value was asked for since nvmlInit."""
        return int(self._library.nvmlStubAsked(gpu, key.encode()))
