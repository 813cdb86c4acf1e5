"""servebench: load-test LLM servers, with numbers that can be trusted."""

__version__ = "0.1.0"
