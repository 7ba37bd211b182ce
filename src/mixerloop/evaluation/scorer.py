"""What evaluation asks of a language model, and nothing more."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np


class Candidate(NamedTuple):
    """A sequence of token ids that is scored from `start` to its end."""

    tokens: np.ndarray
    """int64 [tokens]."""
    start: int
    """At least 1, for the first token has nothing before it; may be the end, scoring nothing."""


class TokenScores(NamedTuple):
    """What a model makes of each scored token, given all tokens before it."""

    losses: np.ndarray
    """Nats, float64 [scored]."""
    most_likely: np.ndarray
    """The token the model finds most likely in that place, int64 [scored]."""


@runtime_checkable
class Scorer(Protocol):
    """A causal language model: token ids in, each scored token's loss and argmax out."""

    vocab_size: int
    tokens_processed: int
    """Tokens the model has been fed so far, padding included."""

    def score(self, questions: Sequence[Sequence[Candidate]]) -> list[list[TokenScores]]:
        """Score every candidate of every question; those of one question may share work."""
        ...


def common_prefix(sequences: Sequence[np.ndarray]) -> int:
    """How many tokens all sequences begin with."""
    length = min(len(sequence) for sequence in sequences)
    first = sequences[0][:length]
    same = np.ones(length, dtype=bool)
    for other in sequences[1:]:
        same &= other[:length] == first
    return length if same.all() else int(same.argmin())


WORTH_A_BATCH = 256
"""Tokens; a smaller batch costs more by being one than a larger one costs by its padding."""


def batches_by_length(
    lengths: Sequence[int], *, most_tokens: int, most_rows: int, most_padding: float = 0.125
) -> list[list[int]]:
    """Numbers of sequences to run together, long ones first, padded to the longest of a batch.

    A batch ends where another row would go over a limit, or would make the batch hold more padding
    than `most_padding`, unless the batch is too small to stand alone.
    """
    batches: list[list[int]] = []
    width = filled = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        rows = len(batches[-1]) + 1 if batches else 0
        padding = 1 - (filled + lengths[index]) / max(1, width * rows)
        full = rows > most_rows or rows * width > most_tokens
        if not batches or full or (padding > most_padding and width * rows > WORTH_A_BATCH):
            batches.append([])
            width, filled = lengths[index], 0
        batches[-1].append(index)
        filled += lengths[index]
    return batches


def padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of one length, zeros behind the short ones: no token sees what comes after it."""
    whole = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for row, tokens in zip(whole, rows, strict=True):
        row[: len(tokens)] = tokens
    return whole
