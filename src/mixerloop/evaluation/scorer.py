"""The interface through which evaluation uses a language model."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np


class Candidate(NamedTuple):
    """A sequence of token ids that is scored from `start` to its end."""

    tokens: np.ndarray
    """int64 [tokens]."""
    start: int
    """At least 1, because no token predicts the first. At the end, no token is scored."""


class TokenScores(NamedTuple):
    """A model's loss and prediction for each scored token, given all tokens before it."""

    losses: np.ndarray
    """Nats, float64 [scored]."""
    most_likely: np.ndarray
    """The token that the model finds most likely at that position, int64 [scored]."""


@runtime_checkable
class Scorer(Protocol):
    """A causal language model: token ids in, each scored token's loss and argmax out."""

    vocab_size: int
    tokens_processed: int
    """Tokens that the model has processed, padding included."""

    def score(self, questions: Sequence[Sequence[Candidate]]) -> list[list[TokenScores]]:
        """Score every candidate of every question; candidates of a question may share work."""
        ...


def common_prefix(sequences: Sequence[np.ndarray]) -> int:
    """The number of tokens of the longest prefix that all sequences have in common."""
    length = min(len(sequence) for sequence in sequences)
    first = sequences[0][:length]
    same = np.ones(length, dtype=bool)
    for sequence in sequences[1:]:
        same &= sequence[:length] == first
    return length if same.all() else int(same.argmin())


WORTH_A_BATCH = 256
"""Tokens; below this size, a separate batch costs more than padding in a larger batch."""


def batches_by_length(
    lengths: Sequence[int], *, most_tokens: int, most_rows: int, most_padding: float = 0.125
) -> list[list[int]]:
    """Divide sequences into batches of indices, the longest sequences first.

    The rows of a batch are padded to its longest sequence. A batch ends where another row would
    exceed `most_tokens` or `most_rows`. It also ends where the share of padding would exceed
    `most_padding`, unless the batch is smaller than `WORTH_A_BATCH`.
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
    """Pad rows with zeros at the end; a causal model's scores do not depend on them."""
    whole = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for row, tokens in zip(whole, rows, strict=True):
        row[: len(tokens)] = tokens
    return whole
