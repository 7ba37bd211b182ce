"""The mean over a few seeds with its confidence interval."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from mixerloop.results import Estimate, PointEstimate

E = TypeVar("E", bound=Estimate | PointEstimate)

QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179),
    *(2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064),
    *(2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Quantiles of Student's t at 97.5 %, by degrees of freedom from 1; from standard tables."""
MANY = 1.960


def quantile(freedom: int) -> float:
    """Student's t at 97.5 % for these degrees of freedom."""
    return QUANTILES[freedom - 1] if freedom <= len(QUANTILES) else MANY


def mean_and_interval(values: Sequence[float]) -> Estimate:
    """The mean of two values or more with its 95 % interval over seeds."""
    size = len(values)
    mean = sum(values) / size
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (size - 1) / size)
    half = quantile(size - 1) * spread
    return Estimate(value=mean, lower=mean - half, upper=mean + half, over="seeds")


def over_runs(estimates: Sequence[E]) -> E | Estimate:
    """The mean over several seeds with its interval; for a single seed, its own estimate."""
    if len(estimates) == 1:
        return estimates[0]
    return mean_and_interval([estimate.value for estimate in estimates])


def share_over_runs(estimates: Sequence[Estimate]) -> Estimate:
    """`over_runs` of shares, whose interval ends at 0 and 1."""
    found = over_runs(estimates)
    return replace(found, lower=max(found.lower, 0.0), upper=min(found.upper, 1.0))
