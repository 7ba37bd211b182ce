"""Centered scores, CORE, the manipulation subset, and the accuracy of guessing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from mixerloop.evaluation.core.tasks import Example, LanguageModeling, options_of
from mixerloop.paper import CORE_MANIPULATION

Score = TypeVar("Score", float, np.ndarray)
"""The score of one model, or an array of scores of many models or resamples."""

Version = Literal["v1", "v2"]
"""A version of the random baselines."""
VERSIONS: tuple[Version, ...] = ("v1", "v2")


def centered(accuracy: Score, baseline: float) -> Score:
    """Rescale an accuracy so that the baseline is 0 and a perfect score is 1."""
    return (accuracy - baseline) / (1 - baseline)


def all_centered(
    accuracies: Mapping[str, Score], baselines: Mapping[str, float]
) -> dict[str, Score]:
    """Center the accuracy of every task by its baseline."""
    return {label: centered(accuracy, baselines[label]) for label, accuracy in accuracies.items()}


def core(scores: Mapping[str, Score]) -> Score:
    """The unweighted mean of the centered scores."""
    return sum(scores.values()) / len(scores)  # pyright: ignore[reportReturnType]


def manipulation(scores: Mapping[str, Score]) -> Score | None:
    """The mean over the manipulation subset; None if one of its tasks is missing."""
    if not set(CORE_MANIPULATION) <= scores.keys():
        return None
    return core({label: scores[label] for label in CORE_MANIPULATION})


def retained(score: float, *, without: float, full: float) -> float:
    """The share of the full change's gain that a partial change, with `score`, retains."""
    return (score - without) / (full - without)


@dataclass(frozen=True)
class Guess:
    """The accuracy of guessing without reading the question."""

    uniform: float
    """All options are equally likely; 0 for language modelling."""
    majority: float
    """The guess is always the most frequent answer of the task, which must be known."""


def guess(examples: Sequence[Example]) -> Guess:
    """The accuracy of guessing on these examples; published baselines may differ from it."""
    answers: Counter[str | int] = Counter()
    uniform = 0.0
    for example in examples:
        if isinstance(example, LanguageModeling):
            answers[example.continuation] += 1
        else:
            answers[example.gold] += 1
            uniform += 1 / len(options_of(example))
    return Guess(uniform / len(examples), max(answers.values()) / len(examples))
