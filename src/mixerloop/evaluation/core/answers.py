"""From scores to answers: which option a model takes, and whether it is right."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mixerloop.evaluation.core.questions import Question
from mixerloop.evaluation.core.tasks import Example, LanguageModeling
from mixerloop.evaluation.scorer import TokenScores


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a model made of one example: a line of the results that are kept."""

    example: int
    """Its number after the shuffle."""
    right: bool
    decision: int | None
    """The option taken; none for language modelling."""
    losses: tuple[float | None, ...]
    """Mean nats of each sequence's scored tokens; none where there are no tokens to score."""
    tokens_plain: int
    cropped: bool


def answer(
    number: int, example: Example, question: Question, scores: Sequence[TokenScores]
) -> Answer:
    """Language modelling must say every token; else the lowest mean loss is taken, first of ties.

    An option without a scored token (it is the beginning of all others) is never taken.
    """
    losses = [float(one.losses.mean()) if len(one.losses) else None for one in scores]
    if isinstance(example, LanguageModeling):
        (candidate,), (one,) = question.candidates, scores
        said = candidate.tokens[candidate.start :]
        decision, right = None, bool(len(said) and (one.most_likely == said).all())
    else:
        decision = int(np.argmin([np.inf if loss is None else loss for loss in losses]))
        right = decision == example.gold
    return Answer(
        example=number,
        right=right,
        decision=decision,
        losses=tuple(losses),
        tokens_plain=question.tokens_plain,
        cropped=question.cropped,
    )
