"""The simulated engine: an OpenAI-compatible server; the scheduler is real, the step time a model."""
