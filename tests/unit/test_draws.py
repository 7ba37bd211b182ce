import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixerloop import draws
from mixerloop.draws import Draws

LAST_PLACES = 4  # units in the last place of a float64
SAMPLES = 200_000


def test_the_quantile_is_that_of_the_normal_distribution():
    tails = 10.0 ** -np.arange(1, 17)
    p = np.concatenate([np.linspace(0.001, 0.999, 2001), tails, 1 - tails[:15]])
    expected = [NormalDist().inv_cdf(one) for one in p]
    np.testing.assert_allclose(draws.normal_quantile(p), expected, rtol=0, atol=2e-15)


@given(st.floats(1e-300, 1e300))
def test_the_logarithm_is_good_to_its_last_places(x):
    (got,) = draws.log(np.array([x]))
    assert abs(got - math.log(x)) <= LAST_PLACES * math.ulp(math.log(x))


@given(st.floats(-300, 300))
def test_the_exponential_is_good_to_its_last_places(x):
    (got,) = draws.exp(np.array([x]))
    assert abs(got - math.exp(x)) <= LAST_PLACES * math.ulp(math.exp(x))


def test_normal_draws_have_the_moments_of_the_normal_distribution():
    z = Draws("moments").normals(SAMPLES)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        five_errors = 5 * math.sqrt(variance / SAMPLES)
        assert np.mean(z**power) == pytest.approx(moment, abs=five_errors), power


def test_uniform_draws_fill_the_open_interval_evenly():
    u = Draws("evenly").uniforms(SAMPLES)
    assert 0 < u.min() < u.max() < 1
    counts = np.bincount((u * 20).astype(int), minlength=20)
    assert abs(counts - SAMPLES / 20).max() < 5 * math.sqrt(SAMPLES / 20)


def test_the_ends_of_the_interval_are_never_drawn():
    class Extremes:
        def random_raw(self, num):
            return np.array([0, 2**64 - 1], dtype=np.uint64)

    stream = Draws()
    stream._generator = Extremes()  # pyright: ignore[reportAttributeAccessIssue]
    low, high = stream.uniforms(2)
    assert 0 < low < high < 1


def test_a_stream_is_its_name():
    first, again, other = (Draws("weights", seed).normals(5) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@given(st.integers(0, 3 * draws.BLOCK))
def test_a_stream_may_be_drawn_in_parts(cut):
    whole = Draws("parts").normals(3 * draws.BLOCK)
    stream = Draws("parts")
    parts = [stream.normals(cut), stream.normals(3 * draws.BLOCK - cut)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_the_first_draws_never_change():
    """Every result that carries a seed hangs on these bits."""
    first = [-0.48190948495282854, 0.013202270619968834, -0.8335295988190924]
    assert Draws("golden", 1337).normals(3).tolist() == first
