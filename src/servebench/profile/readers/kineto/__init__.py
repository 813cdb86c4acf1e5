"""Traces of torch's profiler (Kineto's Chrome JSON, gzipped or not), of one process or of several ranks."""

from servebench.profile.readers.kineto.ranks import read_ranks
from servebench.profile.readers.kineto.trace import read_kineto

__all__ = ["read_kineto", "read_ranks"]
