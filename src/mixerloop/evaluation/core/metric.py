"""What the answers are worth: centered scores, CORE, the manipulation subset, and guessing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from mixerloop.evaluation.core.tasks import Example, LanguageModeling, options_of
from mixerloop.paper import CORE_MANIPULATION

Score = TypeVar("Score", float, np.ndarray)
"""Of one model, or of many models or resamples at once."""

Version = Literal["v1", "v2"]
"""Of the random baselines."""
VERSIONS: tuple[Version, ...] = ("v1", "v2")


def centered(accuracy: Score, baseline: float) -> Score:
    """0 is the baseline, 1 is perfect."""
    return (accuracy - baseline) / (1 - baseline)


def all_centered(
    accuracies: Mapping[str, Score], baselines: Mapping[str, float]
) -> dict[str, Score]:
    """Each task's accuracy, centered."""
    return {label: centered(found, baselines[label]) for label, found in accuracies.items()}


def core(scores: Mapping[str, Score]) -> Score:
    """The plain mean of all tasks' centered scores."""
    return sum(scores.values()) / len(scores)  # pyright: ignore[reportReturnType]


def manipulation(scores: Mapping[str, Score]) -> Score | None:
    """The mean over the manipulation subset; none unless all of it is there."""
    if not set(CORE_MANIPULATION) <= scores.keys():
        return None
    return core({label: scores[label] for label in CORE_MANIPULATION})


def retained(score: float, *, without: float, full: float) -> float:
    """How much of what the full change gains over none, another change keeps."""
    return (score - without) / (full - without)


@dataclass(frozen=True)
class Guess:
    """The accuracy of knowing nothing about the question."""

    uniform: float
    """Any option alike; 0 for language modelling."""
    majority: float
    """Always the most frequent answer, which must be known."""


def guess(examples: Sequence[Example]) -> Guess:
    """What guessing scores on these examples; the printed baselines are not always that."""
    answers: Counter[str | int] = Counter()
    uniform = 0.0
    for example in examples:
        if isinstance(example, LanguageModeling):
            answers[example.continuation] += 1
        else:
            answers[example.gold] += 1
            uniform += 1 / len(options_of(example))
    return Guess(uniform / len(examples), max(answers.values()) / len(examples))
