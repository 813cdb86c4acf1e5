"""The NVML library itself: found, loaded, initialised, or the reason why not."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pynvml

from servebench.telemetry.source import SourceAbsent

SONAME = "libnvidia-ml.so.1"
PLACES = (  # where containers and WSL mount it without telling the loader
    SONAME,
    f"/usr/local/nvidia/lib64/{SONAME}",
    f"/usr/lib/wsl/lib/{SONAME}",
)

_REASONS = {
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "NVML and the loaded driver are of different versions (after an update: "
    "reboot)",
    pynvml.NVML_ERROR_NO_PERMISSION: "this user may not use the NVIDIA driver",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the library is too old, or no NVML",
}


def open_library(path: str | Path | None = None) -> None:
    """Load and initialise NVML.

    Args:
        path: of the library; None takes the system's.

    Raises:
        SourceAbsent: there is none, or no driver behind it.
    """
    _use(_load(path))
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _use(None)
        raise SourceAbsent(f"NVML does not start: {_REASONS.get(error.value, error)}") from None


def close_library() -> None:
    """Shut NVML down and forget the library, so that the next call may open another one."""
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        pass  # it is gone already
    finally:
        _use(None)


def _load(path: str | Path | None) -> ctypes.CDLL:
    for place in PLACES if path is None else (str(path),):
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    if path is None:
        raise SourceAbsent(f"no NVIDIA driver on this machine: {SONAME} is not to be found")
    raise SourceAbsent(f"{Path(path).name}, which was named as NVML's library, cannot be loaded")


def _use(library: ctypes.CDLL | None) -> None:
    """Point nvidia-ml-py at a library: it knows no path but the system's, and remembers its functions."""
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
