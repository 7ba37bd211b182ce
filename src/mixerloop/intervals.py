"""Intervals by resampling the units that are independent of each other."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Real

RESAMPLES = 2000
LEVEL = 0.95


class Estimate(NamedTuple):
    """A value with an interval that holds the true value in 95 % of repetitions."""

    value: float
    lower: float
    upper: float


def bootstrap_ratio(
    numerators: Real[np.ndarray, " units"],
    denominators: Real[np.ndarray, " units"],
    *,
    seed: int = 0,
) -> Estimate:
    """Sum over sum, both resampled by unit: `numerators[i]` and `denominators[i]` stay together.

    Answers within a sequence, or tokens within a document, are not independent; units are.
    """
    ratios = resampled_ratios(numerators[:, None], denominators[:, None], seed=seed)
    return estimate(float(numerators.sum() / denominators.sum()), ratios[:, 0])


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


def estimate(value: float, replicates: Float[np.ndarray, " resamples"]) -> Estimate:
    """A figure with the interval of its resampled values."""
    lower, upper = np.nanquantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(lower), float(upper))
