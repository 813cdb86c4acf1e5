"""The thing under test: a server attached to by its URL, a vLLM launched here, or the simulated engine."""
