"""From the text of an example to the sequences a model scores: which tokens, and from where on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mixerloop.evaluation.core.tasks import Kind
from mixerloop.evaluation.scorer import Candidate, common_prefix

Encode = Callable[[list[str]], list[list[int]]]
"""Texts to token ids, each with the start token in front."""


@dataclass(frozen=True)
class Question:
    """One example as token ids."""

    candidates: tuple[Candidate, ...]
    cropped: bool
    """Whether a sequence was longer than the context and lost its beginning."""

    @property
    def tokens_plain(self) -> int:
        """Tokens to feed when every sequence is scored whole; its last one predicts nothing."""
        return sum(len(candidate.tokens) - 1 for candidate in self.candidates)


def question(kind: Kind, encoded: Sequence[Sequence[int]], *, context: int) -> Question:
    """The sequences of an example, from the tokens of its `prompts`."""
    sequences = [np.array(tokens, dtype=np.int64) for tokens in encoded]
    if kind == "schema":
        shared_end = common_prefix([sequence[::-1] for sequence in sequences])
        starts = [len(sequence) - shared_end for sequence in sequences]
    else:
        starts = [common_prefix(sequences)] * len(sequences)
    if kind == "language_modeling":  # the text without its end was only there to be compared
        sequences, starts = sequences[1:], starts[1:]
    return Question(
        tuple(_cropped(*pair, context) for pair in zip(sequences, starts, strict=True)),
        cropped=any(len(sequence) > context for sequence in sequences),
    )


def _cropped(tokens: np.ndarray, start: int, context: int) -> Candidate:
    """The last tokens a model can see, the start moved along."""
    lost = max(0, len(tokens) - context)
    return Candidate(tokens[lost:], max(1, start - lost))
