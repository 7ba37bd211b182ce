"""Where the curves of two models cross."""

import numpy as np
import pytest

from mixerloop.reports.crossings import Curve, crossing, crossing_text

TOKENS = (10**6, 3 * 10**6, 9 * 10**6)


def curve(means, spread=0.0, seed=0):
    noise = np.random.default_rng(seed).normal(0, spread, (len(means), 3))
    return Curve(tokens=TOKENS, nll=np.array(means)[:, None] + noise)


def test_a_crossing_lies_on_the_line_between_two_budgets():
    found = crossing(curve([3.0, 2.5, 2.2]), curve([2.9, 2.6, 2.4]))
    assert found.tokens is not None
    assert found.tokens.value == pytest.approx(np.sqrt(3) * 10**6)
    assert (found.tokens.lower, found.tokens.upper) == pytest.approx([found.tokens.value] * 2)
    assert (found.ahead_first, found.ahead_last, found.share) == (False, True, 1.0)
    text = crossing_text(("full_loop", "no_loop"), found, parameters=(10**5, 10**5))
    assert text == "full_loop overtakes no_loop at 17.3 [17.3, 17.3] tokens a parameter"


def test_nothing_is_said_beyond_the_budgets():
    found = crossing(curve([3.0, 2.6, 2.5]), curve([2.9, 2.5, 2.499]))
    assert found.tokens is None
    text = crossing_text(("full_loop", "no_loop"), found, parameters=(1, 1))
    assert text == "no_loop is ahead at the smallest and at the largest budget"


def test_an_order_that_changes_twice_has_no_single_crossing():
    found = crossing(curve([3.0, 2.4, 2.5]), curve([2.9, 2.5, 2.4]))
    assert found.tokens is None
    assert found.ahead_first == found.ahead_last


def test_seeds_that_spread_leave_a_crossing_unresolved():
    noise = np.array([[0.3, -0.1, -0.2], [-0.3, 0.3, 0.0], [0.2, -0.3, 0.1]])
    near = crossing(
        Curve(tokens=TOKENS, nll=np.array([[3.0], [2.5], [2.3]]) + noise),
        curve([2.99, 2.51, 2.31]),
    )
    assert near.tokens is not None
    assert near.share < 0.95
    assert not near.is_resolved
    text = crossing_text(("a", "b"), near, parameters=(1, 1))
    assert text.endswith(f"not resolved: in {near.share:.0%} of the resamples")


def test_a_lead_that_three_seeds_do_not_resolve_gives_no_crossing_that_is():
    """Every seed is ahead at one end and behind at the other, and p is 0.09 at the last budget."""
    first = np.array([[4.42, 4.46, 4.46], [3.83, 3.84, 3.85], [3.5025, 3.5133, 3.5121]])
    second = np.array([[4.63, 4.59, 4.66], [3.87, 3.89, 3.86], [3.4873, 3.5043, 3.4939]])
    found = crossing(Curve(tokens=TOKENS, nll=first), Curve(tokens=TOKENS, nll=second))
    assert found.tokens is not None
    assert found.share > 0.5
    assert not found.is_resolved


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_or_two_seeds_resolve_no_crossing(seeds):
    near, far = (
        Curve(tokens=TOKENS, nll=curve(means).nll[:, :seeds])
        for means in ([3.0, 2.5, 2.2], [2.9, 2.6, 2.4])
    )
    found = crossing(near, far)
    assert not found.is_resolved
    text = crossing_text(("a", "b"), found, parameters=(1, 1))
    assert text.endswith(f"no verdict: {seeds} of 3 seeds")


@pytest.mark.slow
def test_crossings_between_equal_models_are_rarely_resolved():
    """The order of two equal models changes by chance alone."""
    resolved = 0
    for seed in range(200):
        pair = [curve([3.0, 2.5, 2.2], 0.01, 2 * seed + which) for which in (0, 1)]
        resolved += crossing(*pair, seed=seed).is_resolved
    assert resolved <= 10


def test_the_interval_covers_the_true_crossing_and_shrinks_with_the_spread():
    wide, narrow = (
        crossing(curve([3.0, 2.5, 2.2], spread, 1), curve([2.9, 2.6, 2.4], spread, 2))
        for spread in (0.03, 0.003)
    )
    assert wide.is_resolved
    assert narrow.is_resolved
    assert wide.tokens is not None
    assert narrow.tokens is not None
    assert wide.tokens.upper - wide.tokens.lower > narrow.tokens.upper - narrow.tokens.lower
    assert narrow.tokens.value == pytest.approx(np.sqrt(3) * 10**6, rel=0.1)
