"""Logs of compute-sanitizer as its versions write them."""

from __future__ import annotations

GREETING = "========= COMPUTE-SANITIZER"
OUT_OF_BOUNDS = """\
========= Invalid __global__ write of size 4 bytes
=========     at scale_kernel(float *, int)+0x50 in scale.cu:14
=========     by thread ({thread},0,0) in block (3906,0,0)
=========     Address 0x7f2a1c003c9c is out of bounds
=========     and is 157 bytes after the nearest allocation at 0x7f2a1c000000 of size 16384 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cudaLaunchKernel [0x56624] in engine.so
========="""
RACE = """\
========= {severity}: Race reported between Write access at sumKernel(int *, int *)+0x90 in block_error.cu:41
=========     and Read access at sumKernel(int *, int *)+0x100 in block_error.cu:51 [508 hazards]
========="""
HAZARD = """\
========= Error: Potential WAW hazard detected at __shared__ 0x0 in block (0, 0, 0) :
=========     Write Thread (0, 0, 0) at overwrite(void)+0x88 in race.cu:7
=========     Write Thread (1, 0, 0) at overwrite(void)+0x88 in race.cu:7
========="""
LEAK = """\
========= Leaked 1,024 bytes at 0x7879c0800000
=========     Saved host backtrace up to driver entry point at allocation time
=========         Host Frame: cudaMalloc [0x56624] in memcheck_demo
========="""
API = """\
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call to \
cudaFree.
=========     Saved host backtrace up to driver entry point at error
========="""
DIVERGED = """\
========= Barrier error detected. Divergent thread(s) in warp
=========     at 0x58 in divergence.cu:61:threadDivergence(int*)
=========     by thread (0,0,0) in block (0,0,0)
========="""
UNINITIALIZED = """\
========= Uninitialized __global__ memory read of size 2 bytes
=========     at 0x60 in gather<__half>(const __half *, int)
=========     by thread (0,0,0) in block (1,0,0)
========="""
CLEAN = "========= ERROR SUMMARY: 0 errors"
CLEAN_RACES = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"


def log(*parts: str) -> str:
    """A log of these parts; what the program itself prints is no part of it, or is (in old versions)."""
    return "\n".join([GREETING, "INFO: the server says this", *parts]) + "\n"
