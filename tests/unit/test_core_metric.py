"""The metric, against the paper's own table and the traps of its baselines."""

from pathlib import Path

import numpy as np
import pytest

from mixerloop import paper
from mixerloop.evaluation.core.answer_folder import Work
from mixerloop.evaluation.core.answers import Answer
from mixerloop.evaluation.core.asking import asked
from mixerloop.evaluation.core.bundle import Bundle
from mixerloop.evaluation.core.metric import (
    all_centered,
    centered,
    core,
    guess,
    manipulation,
    retained,
)
from mixerloop.evaluation.core.scores import summarise
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


# --- from answers to figures ---------------------------------------------------------------------


def figures_of(labels, *, limit=None, context=1024):
    """Figures of answers of which each task has two of eight wrong, as if `labels` were asked."""
    bundle = Bundle(Path(__file__).parents[1] / "data" / "core_bundle")
    asking = [asked(bundle, task, limit=limit) for task in bundle.choose(labels)]
    answers = {
        one.task.label: [
            Answer(
                example=number,
                right=number >= 2,
                decision=None,
                losses=(),
                tokens_plain=1,
                cropped=number == 0,
            )
            for number in range(len(one.examples))
        ]
        for one in asking
    }
    works = {
        label: Work(tokens_plain=10 + n, tokens_processed=5 + n, seconds=0.5, answers_sha256="")
        for n, label in enumerate(answers)
    }
    return summarise(bundle, asking, answers, works, context=context)


def test_figures_of_hand_made_answers():
    """Accuracy 6/8 over baselines of 1/4, 1/2 and 0: 2/3, 1/2 and 3/4."""
    figures = figures_of(())
    assert list(figures.tasks) == ["colours", "pronouns", "endings"]
    scores = [(2 / 3, 0.25), (1 / 2, 0.5), (3 / 4, 0.0)]
    for number, (score, (centered_score, baseline)) in enumerate(
        zip(figures.tasks.values(), scores, strict=True)
    ):
        assert score.accuracy.value == 0.75
        assert 0.25 <= score.accuracy.lower < 0.75 < score.accuracy.upper <= 1
        assert score.accuracy.over == "examples"
        assert (score.baseline_v1, score.baseline_v2) == (baseline, baseline)
        assert score.centered_v1 == score.centered_v2 == pytest.approx(centered_score)
        assert (score.examples, score.cropped_share, score.seconds) == (8, 1 / 8, 0.5)
        assert (score.tokens_plain, score.tokens_processed) == (10 + number, 5 + number)
    for version in (figures.core_v1, figures.core_v2):
        assert version is not None
        assert version.value == pytest.approx((2 / 3 + 1 / 2 + 3 / 4) / 3)
        assert version.lower < version.value < version.upper
    assert figures.manipulation_v1 is figures.manipulation_v2 is None
    guesses = [score.guess for score in figures.tasks.values()]
    assert figures.guess_core_v1 is not None
    for name in ("uniform", "majority"):
        shares = zip((getattr(one, name) for one in guesses), scores, strict=True)
        expected = sum((share - base) / (1 - base) for share, (_, base) in shares) / 3
        assert getattr(figures.guess_core_v1, name) == pytest.approx(expected)
    assert (figures.tokens_plain, figures.tokens_processed) == (33, 18)
    assert not figures.comparable
    assert figures.not_comparable_because == (
        "22 of the 22 tasks were not asked",
        "3 tasks are not CORE's",
    )


def test_a_part_of_the_tasks_has_no_core_and_says_why():
    figures = figures_of(("endings",), limit=4, context=2048)
    assert figures.core_v1 is figures.core_v2 is figures.guess_core_v1 is None
    assert figures.not_comparable_because[1:] == (
        "1 tasks are not CORE's",
        "1 tasks were limited, and with them the examples shown as shots",
        "the context was 2,048 tokens, not 1,024",
    )
