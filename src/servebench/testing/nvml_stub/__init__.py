"""A libnvidia-ml.so.1 that plays a script, for tests of GPU telemetry on machines without a GPU.

`build` compiles it once; `install` puts it, with a script, where a test wants it. The path goes to `NvmlSource(library=)`
or `SamplerJob.nvml_library`. `StubClock` stops the clock of a stub that this process has loaded.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
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
FLAGS = ("-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-Wl,-soname,{NAME}", "-Wl,-Bsymbolic")

_HERE = Path(__file__).parent


def build(folder: str | Path) -> Path:
    """Compile the stub into `folder` and return the library's path.

    Raises:
        RuntimeError: there is no C compiler, or it fails.
    """
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise RuntimeError(f"the NVML stub needs a C compiler ({', '.join(COMPILERS)})")
    library = Path(folder) / NAME
    sources = [str(_HERE / name) for name in SOURCES]
    done = subprocess.run(
        [compiler, *FLAGS, "-o", str(library), *sources, "-lm", "-ldl"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the NVML stub does not compile: {done.stderr}")
    return library


def install(machine: StubMachine, folder: str | Path, built: str | Path | None = None) -> Path:
    """Put a library that plays `machine` into `folder` and return its path.

    Args:
        machine: the script.
        folder: where the library goes; a process that loads several needs several folders.
        built: a library from `build`, which saves the compiler; None builds one.
    """
    library = Path(folder) / NAME
    if built is None:
        build(folder)
    else:
        shutil.copyfile(built, library)
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
