"""The profilers, one module each."""
