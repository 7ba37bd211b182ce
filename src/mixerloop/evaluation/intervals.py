"""Intervals by resampling the units that are independent of one another."""

from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95


class Estimate(NamedTuple):
    """A figure and the interval that holds the true one in 95 % of repetitions."""

    value: float
    lower: float
    upper: float


def bootstrap_ratio(numerators: np.ndarray, denominators: np.ndarray, *, seed: int = 0) -> Estimate:
    """Sum over sum, both resampled by unit: `numerators[i]` and `denominators[i]` stay together.

    Answers within a sequence, or tokens within a document, are not independent; units are.
    """
    if numerators.shape != denominators.shape or numerators.ndim != 1 or not len(numerators):
        raise ValueError("an interval needs a numerator and a denominator for each unit")
    generator = np.random.default_rng(seed)
    size = len(numerators)
    ratios = np.empty(RESAMPLES)
    for index in range(RESAMPLES):
        counts = np.bincount(generator.integers(size, size=size), minlength=size)
        ratios[index] = (counts @ numerators) / max(counts @ denominators, np.finfo(float).tiny)
    lower, upper = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(numerators.sum() / denominators.sum()), float(lower), float(upper))
