"""Executes a plan: pacing, slots and worker processes."""
