"""From the text of an example to the sequences that a model scores, and where scoring starts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mixerloop.evaluation.core.tasks import Kind
from mixerloop.evaluation.scorer import Candidate, common_prefix

Encode = Callable[[list[str]], list[list[int]]]
"""Converts texts to token ids, each with the start token in front."""


@dataclass(frozen=True)
class Question:
    """An example as token ids, with one candidate for each scored sequence."""

    candidates: tuple[Candidate, ...]
    cropped: bool
    """Whether a sequence was longer than the context and lost its beginning."""

    @property
    def tokens_plain(self) -> int:
        """Tokens to process if every sequence is scored whole; its last token predicts nothing."""
        return sum(len(candidate.tokens) - 1 for candidate in self.candidates)


def question(kind: Kind, encoded: Sequence[Sequence[int]], *, context: int) -> Question:
    """Make the question of an example from the tokens of its `prompts`."""
    sequences = [np.array(tokens, dtype=np.int64) for tokens in encoded]
    if kind == "schema":
        shared_end = common_prefix([sequence[::-1] for sequence in sequences])
        starts = [len(sequence) - shared_end for sequence in sequences]
    else:
        starts = [common_prefix(sequences)] * len(sequences)
    if kind == "language_modeling":  # the text without its end only marks the start
        sequences, starts = sequences[1:], starts[1:]
    return Question(
        tuple(_cropped(*pair, context) for pair in zip(sequences, starts, strict=True)),
        cropped=any(len(sequence) > context for sequence in sequences),
    )


def _cropped(tokens: np.ndarray, start: int, context: int) -> Candidate:
    """Crop a sequence to its last `context` tokens, and shift the start accordingly."""
    num_lost = max(0, len(tokens) - context)
    return Candidate(tokens[num_lost:], max(1, start - num_lost))
