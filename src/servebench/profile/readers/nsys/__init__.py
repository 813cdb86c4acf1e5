"""Reads SQLite exports of Nsight Systems, of any generation of their schema from 2.9 on."""

from servebench.profile.readers.nsys.reader import read_nsys

__all__ = ["read_nsys"]
