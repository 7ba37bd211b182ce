"""Intervals: by resampling units that are independent of each other, and over a few seeds."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from jaxtyping import Float, Real

from mixerloop.results import Estimate, Over, PointEstimate

RESAMPLES = 2000
LEVEL = 0.95
QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179),
    *(2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064),
    *(2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Quantiles of Student's t at 97.5 %, by degrees of freedom from 1; from standard tables."""
MANY = 1.960

E = TypeVar("E", bound=Estimate | PointEstimate)


def bootstrap_ratio(
    numerators: Real[np.ndarray, " units"],
    denominators: Real[np.ndarray, " units"],
    *,
    over: Over,
    seed: int = 0,
) -> Estimate:
    """Sum over sum, both resampled by unit: `numerators[i]` and `denominators[i]` stay together.

    Answers within a sequence, or tokens within a document, are not independent; units are.
    """
    ratios = resampled_ratios(numerators[:, None], denominators[:, None], seed=seed)
    return estimate(float(numerators.sum() / denominators.sum()), ratios[:, 0], over=over)


def resampled_ratios(
    numerators: Real[np.ndarray, "units columns"],
    denominators: Real[np.ndarray, "units columns"],
    *,
    seed: int = 0,
) -> Float[np.ndarray, "resamples columns"]:
    """Sum over sum of each column in every resample of the units, the same units for all columns.

    The ratio is NaN in a resample whose denominators sum to 0.
    """
    if numerators.shape != denominators.shape or numerators.ndim != 2:
        raise ValueError("an interval needs a numerator and a denominator for each unit")
    if len(numerators) < 2:
        raise ValueError(f"{len(numerators)} units have no interval; it takes two or more")
    generator = np.random.default_rng(seed)
    size = len(numerators)
    sums = np.empty((RESAMPLES, 2, numerators.shape[1]))
    for resample in sums:
        counts = np.bincount(generator.integers(size, size=size), minlength=size)
        resample[0], resample[1] = counts @ numerators, counts @ denominators
    ratios = np.full_like(sums[:, 0], np.nan)
    return np.divide(sums[:, 0], sums[:, 1], out=ratios, where=sums[:, 1] > 0)


def estimate(value: float, replicates: Float[np.ndarray, " resamples"], *, over: Over) -> Estimate:
    """A figure with the interval of its resampled values."""
    lower, upper = np.nanquantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value=value, lower=float(lower), upper=float(upper), over=over)


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


def over_runs(estimates: Sequence[E]) -> E | Estimate | None:
    """The mean over seeds with its interval; the estimate itself if there is one, or None."""
    if len(estimates) < 2:
        return estimates[0] if estimates else None
    return mean_and_interval([estimate.value for estimate in estimates])


def share_over_runs(estimates: Sequence[Estimate]) -> Estimate:
    """`over_runs` of shares, whose interval ends at 0 and 1."""
    found = over_runs(estimates)
    assert found is not None
    return replace(found, lower=max(found.lower, 0.0), upper=min(found.upper, 1.0))
