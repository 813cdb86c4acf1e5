"""Capture windows, the profilers that fill them, and the source-neutral timeline that they become."""
