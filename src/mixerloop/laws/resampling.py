"""Intervals of a law's parameters by a parametric bootstrap.

Each resample adds normal noise to the NLL that the fitted law gives each group of cells, and fits
again. The noise has the standard deviation of the cells around the law, which holds both the spread
of seeds and what the law does not describe. That standard deviation is itself uncertain, with few
groups of cells: each resample draws it from its scaled inverse chi-squared distribution. For a law
that is linear in its parameters the interval is then exactly Student's t. Residuals are not
resampled, because a study has too few of them.
"""

from collections.abc import Callable

import numpy as np

from mixerloop.intervals import LEVEL
from mixerloop.laws.fit import (
    EXACT,
    HUBER,
    PARAMETERS,
    Design,
    Numbers,
    fit_design,
    parameter_values,
)

RESAMPLES = 400
FEW_RESAMPLES = "weibull"
"""The quantile that keeps the rate of an interval if resamples are few."""


def resampled_numbers(
    design: Design,
    numbers: Numbers,
    run_sd: float,
    *,
    resamples: int,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """The fitted numbers of each resample, in rows."""
    if run_sd < EXACT:
        return np.tile(numbers, (resamples, 1))
    generator = np.random.default_rng(seed)
    law, start = design.law(numbers), design.inside(numbers)
    rows = []
    for number in range(resamples):
        drawn_sd = run_sd * np.sqrt(design.freedom / generator.chisquare(design.freedom))
        noise = drawn_sd * generator.standard_normal(len(law)) / design.weights
        again, _ = fit_design(design, law + noise, start=start, clip=HUBER * drawn_sd)
        rows.append(again)
        if progress is not None:
            progress(number + 1, resamples)
    return np.array(rows)


def interval_ends(design: Design, rows: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The ends of each parameter's interval, in two rows, and the parameters that end at a bound.

    The fitted numbers are monotonic in E, alpha, beta and phi, so that their ends at a bound are
    seen before they are turned into parameters.
    """
    shares = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    values = np.array([parameter_values(design, numbers) for numbers in rows])
    at = {"axis": 0, "method": FEW_RESAMPLES}
    ends = np.quantile(rows, shares, **at)
    touched = design.at_bound(ends[0]) | design.at_bound(ends[1])
    return np.quantile(values, shares, **at), [PARAMETERS[n] for n in design.free if touched[n]]
