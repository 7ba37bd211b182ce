"""Verdicts come out right at their rate."""

from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixerloop.evaluation.core.metric import all_centered, core
from mixerloop.evaluation.core.resampling import resampled_accuracies
from mixerloop.evaluation.difference import Difference, Scores, difference, judge_together
from mixerloop.intervals import bootstrap_ratio, resampled_ratios

SIMULATIONS = 1000
NOMINAL = (0.92, 0.98)  # of a 95 % interval, where 1,000 simulations are good to 0.7 %
TASKS, EXAMPLES = 11, 60
BASELINES = {str(task): 0.25 * (task % 3) for task in range(TASKS)}


def synthetic(generator, num_runs, *, seeds_vary=0.0, better=0.0, examples=EXAMPLES):
    """Answers of runs that share which examples are hard; `better` moves the first half."""
    runs = generator.normal(0, seeds_vary, num_runs)
    runs[: num_runs // 2] += better
    right = {}
    for task in BASELINES:
        hard = generator.normal(0, 1.5, (examples, 1))
        chance = 1 / (1 + np.exp(hard - runs - generator.normal(0, seeds_vary, num_runs)))
        right[task] = generator.random((examples, num_runs)) < chance
    return right


def core_scores(right, seed=0):
    points = {task: found.mean(axis=0) for task, found in right.items()}
    drawn = resampled_accuracies(right, seed=seed)
    return Scores(core(all_centered(points, BASELINES)), core(all_centered(drawn, BASELINES)))


def holds_zero(found):
    return found.lower <= 0 <= found.upper


def zero_inside(draw, *, same_seeds=False, simulations=SIMULATIONS):
    """The share of simulated comparisons whose interval holds zero."""
    generator = np.random.default_rng(0)
    count = 0
    for number in range(simulations):
        scores = core_scores(draw(generator), seed=number)
        half = len(scores.points) // 2
        found = difference(
            scores.of(range(half)),
            scores.of(range(half, 2 * half)),
            same_seeds=same_seeds,
            seed=number,
        )
        count += holds_zero(found)
    return count / simulations


@pytest.mark.slow
def test_intervals_of_two_halves_of_one_models_examples_hold_zero_at_the_nominal_rate():
    def halves(generator):
        whole = synthetic(generator, 1, examples=2 * EXAMPLES)
        return {
            task: np.stack(np.split(generator.permutation(found[:, 0]), 2), axis=1)
            for task, found in whole.items()
        }

    low, high = NOMINAL
    assert low <= zero_inside(halves) <= high


@pytest.mark.slow
def test_intervals_of_two_runs_that_differ_by_chance_hold_zero_at_the_nominal_rate():
    low, high = NOMINAL
    assert low <= zero_inside(lambda generator: synthetic(generator, 2)) <= high


@pytest.mark.slow
@pytest.mark.parametrize("num_seeds", [2, 4])
def test_seeds_that_vary_keep_the_rate(num_seeds):
    """Two are pooled, four paired."""
    rate = zero_inside(
        lambda generator: synthetic(generator, 2 * num_seeds, seeds_vary=0.1),
        same_seeds=True,
        simulations=400,
    )
    low, _ = NOMINAL  # Welch's interval is a little wide for two
    assert low <= rate


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "spreads"),
    [((2, 2), (1, 1)), ((3, 3), (1, 0.2)), ((3, 5), (1, 0.3)), ((1, 5), (1, 1)), ((4, 4), (1, 1))],
)
def test_unequal_numbers_and_spreads_of_seeds_keep_the_rate(sizes, spreads):
    """Scores drawn directly: a spread by seed, and chance as large as half of it."""
    generator = np.random.default_rng(5)
    chance, simulations, count = 0.5, 600, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mixerloop.evaluation.difference.SEED_DRAWS", 5)
        for number in range(simulations):
            spread = np.repeat(spreads, sizes)
            points = generator.normal(0, np.hypot(spread, chance))
            scores = Scores(points, points + generator.normal(0, chance, (400, len(points))))
            first, second = np.split(np.arange(len(points)), [sizes[0]])
            found = difference(
                scores.of(first.tolist()),
                scores.of(second.tolist()),
                same_seeds=sizes[0] == sizes[1],
                seed=number,
            )
            count += holds_zero(found)
            if min(sizes) >= 3:
                assert found.p_value is not None
                assert found.verdict == ("not resolved" if found.p_value >= 0.05 else "resolved")
                is_near = abs(found.p_value - 0.05) < 0.01
                assert is_near or holds_zero(found) == (found.p_value >= 0.05)
    assert NOMINAL[0] <= count / simulations <= 0.99


def test_a_better_architecture_is_resolved():
    def better(generator):
        return synthetic(generator, 6, seeds_vary=0.05, better=0.6)

    generator = np.random.default_rng(3)
    found = [core_scores(better(generator), seed=number) for number in range(5)]
    verdicts = [difference(s.of(range(3)), s.of(range(3, 6)), same_seeds=True) for s in found]
    assert all(one.verdict == "resolved" and one.value > 0 for one in verdicts)


@pytest.mark.parametrize(("seeds", "verdict"), [(1, "one"), (2, "two")])
def test_fewer_than_three_seeds_have_no_verdict_however_large_the_difference(seeds, verdict):
    points = np.r_[np.zeros(seeds), np.full(3, 100.0)] + np.arange(seeds + 3) / 100
    scores = Scores(points, np.tile(points, (50, 1)))
    found = difference(
        scores.of(range(seeds)), scores.of(range(seeds, seeds + 3)), same_seeds=False
    )
    assert found.verdict == f"{verdict} seed{'s' * (seeds > 1)}: no verdict"
    assert (found.p_value, found.holm_p_value) == (None, None)
    assert judge_together([found]) == [found]


def of_p_value(p_value):
    figures = {"value": 1.0, "lower": 0.5, "upper": 1.5, "over": "seeds and examples"}
    return Difference(**figures, p_value=p_value, holm_p_value=None, verdict="not resolved")


# --- examples that are worked out by hand ---------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """Student's t is drawn once for each resample, with values that the test sets."""
    asked = SimpleNamespace(draws=0.0, seed=None, freedom=None)

    def standard_t(freedom, size):
        asked.freedom = freedom
        return np.broadcast_to(asked.draws, size)

    def default_rng(seed):
        asked.seed = seed
        return SimpleNamespace(standard_t=standard_t)

    monkeypatch.setattr("mixerloop.evaluation.difference.SEED_DRAWS", 1)
    monkeypatch.setattr(np.random, "default_rng", default_rng)
    return asked


def without_examples(points, resamples=4):
    """Scores that do not depend on the choice of examples."""
    return Scores(
        np.array(points, dtype=float), np.tile(np.array(points, dtype=float), (resamples, 1))
    )


@pytest.mark.parametrize(
    ("first", "second", "same_seeds", "variance", "freedom"),
    [  # means 3 and 1, or 2 apart
        ([1, 2, 6], [0, 1, 2], False, 7 / 3 + 1 / 3, 2.56),  # (8/3)^2 / ((7/3)^2/2 + (1/3)^2/2)
        ([1, 2, 6], [0, 1, 2], True, 7 / 3 + 1 / 3, 2.56),
        ([1, 2, 3, 6], [0, 1, 2, 1], True, 4 / 4, 3),  # differences of 1, 1, 1 and 5
        ([1, 2, 3, 6], [0, 1, 2, 1], False, (14 / 3 + 2 / 3) / 4, 3.84),
        ([3], [0, 1, 2], False, 1 / 3 * (1 + 3), 2),
        ([2, 3, 4], [1], False, 1 / 3 * (1 + 3), 2),
        ([4, 4, 4], [2, 2], False, 0, 3),
    ],
)
def test_seeds_vary_by_students_t(asked, first, second, same_seeds, variance, freedom):
    asked.draws = 3.0
    scores = without_examples(first), without_examples(second)
    found = difference(*scores, same_seeds=same_seeds, over="documents", seed=5)
    assert found.value == 2
    assert (found.lower, found.upper) == pytest.approx([2 + 3 * np.sqrt(variance)] * 2)
    assert asked.freedom == pytest.approx(freedom)
    assert (asked.seed, found.over) == ([5, 1], "seeds and examples")


def test_of_the_choice_of_examples_only_what_no_seed_explains_is_added(asked):
    """The means move by 1.5 and 0.5 in each resample, so the difference by 1 and its variance is 1.

    Within an architecture the two runs move by 2 and 1, or by 0 and 1: a variance of 1/2 each,
    which is 1/4 for a mean of two. What is left of the variance of 1 is 1 - 1/4 - 1/4.
    """
    up, nowhere = np.array([[1.0], [-1.0], [1.0], [-1.0]]), np.full((1, 2), np.nan)
    first = Scores(np.array([5.0, 5.0]), np.r_[5 + up * [2, 1], nowhere])
    second = Scores(np.array([2.0, 2.0]), np.r_[2 + up * [0, 1], nowhere])
    found = difference(first, second, same_seeds=True)
    assert (found.value, found.verdict) == (3, "two seeds: no verdict")
    assert (found.lower, found.upper) == pytest.approx((3 - np.sqrt(1 / 2), 3 + np.sqrt(1 / 2)))
    assert asked.seed == [0, 1]
    alone = difference(first.of([0]), second.of([0]), same_seeds=True, over="documents")
    assert (alone.value, alone.lower, alone.upper, alone.over) == (3, 1, 5, "documents")
    assert (alone.p_value, alone.verdict) == (None, "one seed: no verdict")
    independent = Scores(np.array([5.0, 5.0]), np.r_[5 + up * [3, -3], nowhere])
    found = difference(independent, second, same_seeds=True)
    assert (found.lower, found.upper) == (3, 3), "seeds explain more than there is"


def test_a_p_value_is_twice_the_share_on_the_other_side_of_zero(asked):
    """Two of nine resamples lie beyond zero: 2 x (2 + 1) / (9 + 1)."""
    scores = without_examples([1, 2, 6], 9), without_examples([0, 1, 2], 9)  # sd of 1.63
    asked.draws = np.array([-2.0, -1.3, *(0.0,) * 7])
    found = difference(*scores, same_seeds=False)
    assert (found.p_value, found.holm_p_value) == pytest.approx((0.6, 0.6))
    assert found.verdict == "not resolved"
    asked.draws = -asked.draws
    found = difference(*reversed(scores), same_seeds=False)
    assert (found.value, found.p_value) == pytest.approx((-2, 0.6))
    asked.draws = 0.0
    for resamples, verdict in ((38, "not resolved"), (40, "resolved")):  # 2 / (1 + resamples)
        scores = without_examples([1, 2, 6], resamples), without_examples([0, 1, 2], resamples)
        assert difference(*scores, same_seeds=False).verdict == verdict


def test_p_values_are_corrected_by_holms_method():
    judged = judge_together([of_p_value(p) for p in (0.02, 0.01, None, 0.04, 0.03)])
    corrected = [found.holm_p_value for found in judged]
    assert corrected == [pytest.approx(p) for p in (0.06, 0.04, None, 0.06, 0.06)]
    assert [found.verdict for found in judged].index("resolved") == 1
    assert [found.verdict for found in judged].count("resolved") == 1
    assert [found.holm_p_value for found in judge_together([of_p_value(0.6), of_p_value(0.9)])] == [
        *(1.0, 1.0)
    ]


@given(st.lists(st.floats(0, 1), max_size=12), st.integers(0, 3))
def test_holms_method_is_the_closed_test_of_bonferroni(p_values, without):
    """A hypothesis is rejected iff Bonferroni rejects every set of hypotheses that holds it."""
    p_values = p_values[:6]
    unjudged = [replace(of_p_value(None), verdict="one seed: no verdict")] * without
    judged = judge_together([*map(of_p_value, p_values), *unjudged])
    for index, found in enumerate(judged[: len(p_values)]):
        sets = (
            (index, *others)
            for size in range(len(p_values))
            for others in combinations(set(range(len(p_values))) - {index}, size)
        )
        closed = max(min(1.0, len(s) * min(p_values[i] for i in s)) for s in sets)
        assert found.holm_p_value == pytest.approx(closed, rel=1e-12)
        assert found.verdict == ("resolved" if closed < 0.05 else "not resolved")
    assert judged[len(p_values) :] == unjudged


@pytest.mark.slow
def test_of_ten_equal_architectures_a_pair_is_rarely_called_resolved():
    """45 pairs of a page: without a correction some pair is resolved in nearly every study."""
    generator = np.random.default_rng(7)
    studies, alone, together = 60, 0, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mixerloop.evaluation.difference.SEED_DRAWS", 20)
        for number in range(studies):
            points = generator.normal(0, 1, 30)
            scores = Scores(points, points + generator.normal(0, 0.2, (400, 30)))
            groups = [scores.of(range(3 * arm, 3 * arm + 3)) for arm in range(10)]
            found = [
                difference(first, second, same_seeds=True, seed=number)
                for first, second in combinations(groups, 2)
            ]
            alone += any(one.verdict == "resolved" for one in found)
            together += any(one.verdict == "resolved" for one in judge_together(found))
    assert alone > studies / 2
    assert together <= 0.1 * studies


def test_the_interval_of_a_difference_is_narrower_than_that_of_its_parts():
    """Pairing pays: what is hard for both falls out."""
    scores = core_scores(synthetic(np.random.default_rng(0), 2, examples=600))
    found = difference(scores.of([0]), scores.of([1]), same_seeds=False)
    apart = np.sqrt(2) * scores.replicates[:, 0].std() * 2 * 1.96
    assert found.upper - found.lower < 0.9 * apart


def test_equal_answers_differ_by_nothing():
    right = {task: np.repeat(found, 2, axis=1) for task, found in synthetic_one().items()}
    scores = core_scores(right)
    found = difference(scores.of([0]), scores.of([1]), same_seeds=False)
    assert (found.value, found.lower, found.upper) == (0.0, 0.0, 0.0)
    assert found.verdict == "one seed: no verdict"
    again = core_scores({task: np.repeat(one, 4, axis=1) for task, one in synthetic_one().items()})
    found = difference(again.of([0, 1]), again.of([2, 3]), same_seeds=True)
    assert (found.value, found.lower, found.upper) == (0.0, 0.0, 0.0)
    assert found.verdict == "two seeds: no verdict"
    six = core_scores({task: np.repeat(one, 6, axis=1) for task, one in synthetic_one().items()})
    found = difference(six.of([0, 1, 2]), six.of([3, 4, 5]), same_seeds=True)
    assert (found.p_value, found.verdict) == (1.0, "not resolved")


def synthetic_one():
    return synthetic(np.random.default_rng(1), 1)


def test_drawing_patterns_is_drawing_examples():
    """The quick draw has the mean and spread of the slow one."""
    right = synthetic(np.random.default_rng(2), 2, examples=300)["3"]
    quick = resampled_accuracies({"3": right})["3"]
    slow = resampled_ratios(right.astype(float), np.ones(right.shape))
    np.testing.assert_allclose(quick.mean(axis=0), slow.mean(axis=0), atol=0.004)
    np.testing.assert_allclose(np.cov(quick.T), np.cov(slow.T), rtol=0.15, atol=3e-5)


def test_columns_are_resampled_together():
    generator = np.random.default_rng(0)
    numerators = generator.random((40, 2))
    denominators = np.ones((40, 2))
    ratios = resampled_ratios(numerators, denominators)
    alone = bootstrap_ratio(numerators[:, 0], denominators[:, 0], over="documents")
    assert np.quantile(ratios[:, 0], 0.025) == pytest.approx(alone.lower, rel=1e-12)
    same = resampled_ratios(np.repeat(numerators[:, :1], 2, axis=1), denominators)
    np.testing.assert_array_equal(same[:, 0], same[:, 1])


@pytest.mark.parametrize("units", [0, 1])
def test_of_fewer_than_two_units_there_is_no_interval(units):
    with pytest.raises(ValueError, match=f"{units} units have no interval"):
        resampled_ratios(np.ones((units, 1)), np.ones((units, 1)))


def test_what_a_resample_has_none_of_is_not_a_number():
    ratios = resampled_ratios(np.array([[1.0], [0.0]]), np.array([[1.0], [0.0]]))
    assert set(ratios[~np.isnan(ratios)]) == {1.0}
    assert 0.1 < np.isnan(ratios).mean() < 0.4
