"""The share of the full loop's gain that another loop keeps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixerloop.reports.kept_gain import kept_share

SPREAD = 0.01


def seeds(mean, count=3, generator=None):
    """NLLs of some seeds around a mean, which is exact without a generator."""
    noise = np.linspace(-1, 1, count) if generator is None else generator.standard_normal(count)
    return (mean + SPREAD * noise).tolist()


def test_the_share_is_the_ratio_of_the_gains():
    found = kept_share(seeds(3.0), seeds(2.9), seeds(2.8))
    assert found is not None
    assert found.value == pytest.approx(0.5)
    assert 0 < found.lower < 0.5 < found.upper < 1


def test_a_loop_that_is_worse_than_no_loop_keeps_less_than_nothing():
    found = kept_share(seeds(3.0), seeds(3.1), seeds(2.8))
    assert found is not None
    assert found.upper < 0


@pytest.mark.parametrize("full_loop", [3.02, 3.0, 2.98, 3.5])
def test_without_a_sure_gain_of_the_full_loop_there_is_no_share(full_loop):
    assert kept_share(seeds(3.0), seeds(2.9), seeds(full_loop)) is None


def test_the_interval_holds_the_share_as_often_as_it_says():
    """Fieller's interval is exact for one variance; the fewest degrees of freedom are careful."""
    generator = np.random.default_rng(0)
    held = []
    for _ in range(4_000):
        found = kept_share(*(seeds(mean, 3, generator) for mean in (3.0, 2.88, 2.8)))
        if found is not None:
            held.append(found.lower <= 0.6 <= found.upper)
    assert len(held) > 3_900
    assert 0.95 <= np.mean(held) < 1


@given(shift=st.floats(-5, 5), scale=st.floats(0.1, 10))
def test_the_unit_and_the_level_of_the_nll_do_not_matter(shift, scale):
    means = (3.0, 2.9, 2.8)
    found = kept_share(*(seeds(mean) for mean in means))
    moved = kept_share(*([scale * x + shift for x in seeds(mean)] for mean in means))
    assert found is not None
    assert moved is not None
    assert (moved.value, moved.lower, moved.upper) == pytest.approx(
        (found.value, found.lower, found.upper), rel=1e-6
    )
