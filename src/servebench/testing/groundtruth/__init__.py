"""A server whose truth is known: every token carries the nanosecond at which it was handed to the kernel."""

from servebench.testing.groundtruth.launch import GroundTruth

__all__ = ["GroundTruth"]
