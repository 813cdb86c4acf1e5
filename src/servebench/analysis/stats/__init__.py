"""Statistics of runs: pure functions of numbers, which know nothing of servers, files or reports."""

from servebench.analysis.stats.bootstrap import over_blocks, over_runs
from servebench.analysis.stats.early_stopping import estimate_rank, floor, least_queries
from servebench.analysis.stats.holm import holm
from servebench.analysis.stats.interval import Interval
from servebench.analysis.stats.order import order_interval
from servebench.analysis.stats.permutation import (
    Test,
    least_p_paired,
    least_p_unpaired,
    pairs_that_reach,
    runs_that_reach,
    sign_flip,
    sign_flip_interval,
    two_sample,
    two_sample_interval,
)
from servebench.analysis.stats.power import pairs_needed, power_paired, power_unpaired, runs_needed
from servebench.analysis.stats.samples import effective_size
from servebench.analysis.stats.student import mean_interval

__all__ = [
    "Interval",
    "Test",
    "effective_size",
    "estimate_rank",
    "floor",
    "holm",
    "least_p_paired",
    "least_p_unpaired",
    "least_queries",
    "mean_interval",
    "order_interval",
    "over_blocks",
    "over_runs",
    "pairs_needed",
    "pairs_that_reach",
    "power_paired",
    "power_unpaired",
    "runs_needed",
    "runs_that_reach",
    "sign_flip",
    "sign_flip_interval",
    "two_sample",
    "two_sample_interval",
]
