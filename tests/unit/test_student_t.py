"""Means over a few seeds."""

import pytest

from mixerloop.intervals import MANY, QUANTILES, mean_and_interval, over_runs
from mixerloop.results import Estimate


def test_three_values_by_hand():
    mean = mean_and_interval([1.0, 2.0, 3.0])
    assert (mean.value, mean.over) == (2, "seeds")
    halves = (mean.value - mean.lower, mean.upper - mean.value)
    assert halves == pytest.approx((2.4843, 2.4843), abs=1e-4)  # 4.303 / sqrt(3)


def test_the_quantiles_fall_towards_those_of_many():
    assert list(QUANTILES) == sorted(QUANTILES, reverse=True)
    assert QUANTILES[-1] > MANY
    wide = mean_and_interval([0.0, 1.0] * 40)
    assert wide.upper - wide.value == pytest.approx(MANY * (80 / 79) ** 0.5 * 0.5 / 80**0.5)


def test_one_run_has_its_own_interval():
    alone = Estimate(value=1.0, lower=0.5, upper=2.0, over="documents")
    assert over_runs([alone]) == alone
