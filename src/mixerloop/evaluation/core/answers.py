"""From scores to answers: the option that a model chooses, and whether it is right."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mixerloop.evaluation.core.questions import Question
from mixerloop.evaluation.core.tasks import Example, LanguageModeling
from mixerloop.evaluation.scorer import TokenScores


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A model's answer to one example, saved as a line of LABEL.jsonl."""

    example: int
    """The number of the example after the shuffle."""
    right: bool
    decision: int | None
    """The chosen option; None for language modelling."""
    losses: tuple[float | None, ...]
    """Mean nats of each sequence's scored tokens; None for a sequence without scored tokens."""
    tokens_plain: int
    cropped: bool


def answer(
    number: int, example: Example, question: Question, scores: Sequence[TokenScores]
) -> Answer:
    """Decide on an answer from the scores of an example's sequences.

    In language modelling, every scored token must be the most likely token. In other tasks the
    option with the lowest mean loss is chosen, and the first option of a tie. An option without a
    scored token, which is a prefix of all other options, is never chosen.
    """
    losses = [float(option.losses.mean()) if len(option.losses) else None for option in scores]
    if isinstance(example, LanguageModeling):
        (candidate,), (score,) = question.candidates, scores
        expected = candidate.tokens[candidate.start :]
        is_predicted = score.most_likely == expected
        decision, right = None, bool(len(expected) and is_predicted.all())
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
