"""Executes a plan: pacing, slots and worker processes."""

import sys

# httpx imports its own command line, if it can, and with it rich and pygments: a tenth of a worker's start and memory.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
