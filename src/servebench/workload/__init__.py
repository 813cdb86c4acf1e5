"""What is sent and when, as pure functions of a scenario and its seeds."""

from servebench.workload.plan import Plan
from servebench.workload.planning import cohort_bounds_ns, make_plan

__all__ = ["Plan", "cohort_bounds_ns", "make_plan"]
