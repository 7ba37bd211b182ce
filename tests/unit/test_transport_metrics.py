"""ITR and its companions on Gram matrices worked out by hand."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mixerloop.transport.geometry import itr, itr_by_depth, later_share, marginal_itr


def gram(*increments):
    rows = np.array(increments, dtype=float)
    return rows @ rows.T


def test_passes_along_one_direction_are_one_direction():
    aligned = gram([1, 0], [2, 0], [0.5, 0])
    assert itr(aligned) == pytest.approx(1.0)
    np.testing.assert_allclose(marginal_itr(aligned), [1, 0, 0], atol=1e-12)


def test_orthogonal_increments_are_all_new_though_their_sums_are_not_orthogonal():
    """The sums of e1, e2 and e3 have the squared cosines 1/2, 1/3 and 2/3."""
    orthogonal = gram([1, 0, 0], [0, 1, 0], [0, 0, 1])
    np.testing.assert_allclose(marginal_itr(orthogonal), [1, 1, 1])
    assert itr(orthogonal) == pytest.approx(9 / (3 + 2 * (1 / 2 + 1 / 3 + 2 / 3)))
    np.testing.assert_allclose(itr_by_depth(orthogonal), [1, 4 / 3, 9 / 6])


def test_a_trajectory_that_turns_at_right_angles_reaches_every_direction():
    """Sums e1, e2: increments e1 and e2 - e1, of which half is new."""
    turning = gram([1, 0], [-1, 1])
    assert itr(turning) == pytest.approx(2.0)
    np.testing.assert_allclose(marginal_itr(turning), [1, 0.5])


def test_a_repeated_increment_is_not_new():
    repeated = gram([1, 0], [0, 1], [1, 0], [3, 4])
    np.testing.assert_allclose(marginal_itr(repeated), [1, 1, 0, 0], atol=1e-12)


def test_an_increment_that_is_nothing_is_not_new_and_no_direction():
    still = gram([1, 0], [0, 0], [0, 1])
    np.testing.assert_allclose(marginal_itr(still), [1, 0, 1])
    late = gram([0, 0], [1, 0], [0, 1])
    np.testing.assert_allclose(marginal_itr(late), [0, 1, 1])
    assert itr(late) == pytest.approx(itr(gram([1, 0], [0, 1])))  # a_1 is nothing and left out
    assert np.isnan(itr(gram([0, 0], [0, 0])))
    np.testing.assert_array_equal(marginal_itr(gram([0, 0], [0, 0])), [0, 0])


def test_a_sum_that_is_a_millionth_of_the_largest_counts_as_nothing():
    assert itr(gram([0, 0.9e-6], [1, 0])) == pytest.approx(1)
    assert itr(gram([0, 1.1e-6], [1, 0])) == pytest.approx(2)


@pytest.mark.parametrize("scale", [1e150, 1, 1e-4, 1e-7, 1e-150])
def test_a_short_increment_repeats_as_much_as_a_long_one(scale):
    increments = np.array([[1, 0, 0], [0, scale, 0], [0, 0.8 * scale, 0.6 * scale]])
    np.testing.assert_allclose(marginal_itr(gram(*increments)), [1, 1, 0.36], rtol=1e-12)


def test_the_later_share_is_of_the_sum():
    assert later_share(np.array([1.0, 2.0, 1.0])) == pytest.approx(0.75)
    assert np.isnan(later_share(np.zeros(3)))


def test_stacks_are_measured_one_by_one():
    one, other = gram([1, 0], [2, 0]), gram([1, 0], [-1, 1])
    stack = np.stack([one, other])
    np.testing.assert_allclose(itr(stack), [1, 2])
    np.testing.assert_allclose(marginal_itr(stack), [[1, 0], [1, 0.5]], atol=1e-12)


vectors = arrays(float, (4, 5), elements=st.floats(-3, 3, width=32))


@given(vectors, st.floats(0.01, 100), st.integers(0, 1000))
def test_scale_and_orthogonal_coordinates_change_nothing(increments, scale, seed):
    values = np.linalg.svd(increments, compute_uv=False)
    assume(values[-1] > 1e-2 * values[0] > 1e-4)  # away from the cuts, where a hair decides
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(5, 5)))
    moved = scale * increments @ rotation
    np.testing.assert_allclose(itr(gram(*moved)), itr(gram(*increments)), rtol=1e-6)
    np.testing.assert_allclose(
        marginal_itr(gram(*moved)), marginal_itr(gram(*increments)), rtol=1e-6, atol=1e-9
    )


def marginal_itr_by_definition(increments):
    """The squared length that least squares leave of each increment at length 1."""
    units = increments / np.linalg.norm(increments, axis=1, keepdims=True)
    shares = [1.0]
    for index in range(1, len(units)):
        earlier, own = units[:index].T, units[index]
        rest = own - earlier @ np.linalg.lstsq(earlier, own)[0]
        shares.append(rest @ rest)
    return np.array(shares)


@given(vectors, arrays(float, 4, elements=st.floats(-150, 150)))
def test_marginal_itr_is_that_of_the_definition_however_increments_are_scaled(
    increments, exponents
):
    lengths = np.linalg.norm(increments, axis=1, keepdims=True)
    assume(lengths.min() > 1e-3)
    assume(np.linalg.svd(increments / lengths, compute_uv=False)[-1] > 1e-2)  # away from the cut
    scaled = increments * 10.0 ** exponents[:, None]
    np.testing.assert_allclose(
        marginal_itr(gram(*scaled)), marginal_itr_by_definition(increments), rtol=0, atol=1e-10
    )
