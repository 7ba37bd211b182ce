"""The metric, against the paper's own table and the traps of its baselines."""

import numpy as np
import pytest

from mixerloop import paper
from mixerloop.evaluation.core.metric import (
    all_centered,
    centered,
    core,
    guess,
    manipulation,
    retained,
)
from mixerloop.evaluation.core.tasks import LanguageModeling, MultipleChoice, Schema


@pytest.mark.parametrize("model", paper.CORE, ids="-".join)
def test_the_papers_tasks_give_the_papers_means(model):
    printed = paper.CORE[model]
    assert round(core(printed.scores()), 2) == printed.core_mean
    subset = manipulation(printed.scores())
    assert subset is not None
    assert round(subset, 2) == printed.manipulation_mean


def test_the_mixer_loop_keeps_41_5_percent_of_the_full_loops_gain_at_110m():
    means = {loop: core(paper.CORE["110m", loop].scores()) for _, loop in paper.CORE}
    kept = retained(means["mixer_loop"], without=means["no_loop"], full=means["full_loop"])
    assert round(kept, 3) == paper.CORE_RETAINED


def test_boolq_alone_makes_most_of_the_papers_lead_at_15m():
    mixer, full = (paper.CORE["15m", loop].scores() for loop in ("mixer_loop", "full_loop"))
    assert round(core(mixer) - core(full), 2) == 1.00
    assert round((mixer["boolq"] - full["boolq"]) / 22, 2) == 0.78


@pytest.mark.parametrize(
    ("label", "chance", "baseline", "score"),
    [
        ("bigbench_language_identification", 0.25, 0.091, 17.5),
        ("agi_eval_lsat_ar", 0.25, 0.20, 6.25),
        ("commonsense_qa", 0.25, 0.20, 6.25),
        ("boolq", 0.50, 0.62, -31.6),
    ],
)
def test_chance_does_not_score_zero_under_the_first_baselines(label, chance, baseline, score):
    assert 100 * centered(chance, baseline) == pytest.approx(score, abs=0.05)


def test_a_subset_has_no_manipulation_score():
    assert manipulation({"hellaswag": 0.5, "squad": 0.1}) is None


def test_many_models_are_scored_at_once():
    accuracies = {"one": np.array([0.5, 0.25]), "two": np.array([1.0, 0.0])}
    found = core(all_centered(accuracies, {"one": 0.25, "two": 0.0}))
    np.testing.assert_allclose(found, [(1 / 3 + 1) / 2, 0.0])


def test_guessing_is_counted_on_the_examples_themselves():
    choices = [
        MultipleChoice(query="q", choices=("a", "b"), gold=0),
        MultipleChoice(query="q", choices=("a", "b", "c", "d"), gold=1),
        MultipleChoice(query="q", choices=("a", "b"), gold=1),
    ]
    found = guess(choices)
    assert found.uniform == pytest.approx((0.5 + 0.25 + 0.5) / 3)
    assert found.majority == pytest.approx(2 / 3)
    schema = [Schema(context_options=("a", "b"), continuation="c", gold=0)]
    assert guess(schema).uniform == 0.5
    said = [LanguageModeling(context="c", continuation=end) for end in ("Invalid", "Invalid", "8")]
    assert guess(said).uniform == 0.0
    assert guess(said).majority == pytest.approx(2 / 3)
