"""Samplers that share the clock of the run: the client host, and the sources that are joined with it."""
