"""Windows: a split of prepared data, cut into sequences of the model's context length.

Every reader cuts a split in the same way. Window i of a text begins at token i * context and holds
`context` tokens and the token after them. That token is the label of the window's last position and
the first token of window i + 1. The remaining tokens of a split are one shorter window. Training
reads the whole windows, the held-out NLL reads the shorter window too, and transport draws among
the windows that have `context` tokens. The windows of a synthetic task are its sequences.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from mixerloop.data.shards import TokenSplit

NOT_SCORED = -100  # the default ignore_index of torch's cross-entropy


class Labelled(NamedTuple):
    """Inputs and labels of some windows, int64."""

    inputs: Int[np.ndarray, "windows context"]
    labels: Int[np.ndarray, "windows context"]
    """The token after each input; `NOT_SCORED` where the prediction does not count."""


@runtime_checkable
class Windows(Protocol):
    """Whole windows of one split, read by number."""

    @property
    def num_windows(self) -> int:
        """Whole windows in the split."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def context(self) -> int:
        """Tokens of a window."""
        ...

    def read(self, indices: Int[np.ndarray, " windows"]) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of these windows, int64 [windows, context] each."""
        ...


class TokenWindows:
    """A split of tokens cut into windows; every position has a label."""

    def __init__(self, tokens: TokenSplit, context: int) -> None:
        if context < 1:
            raise ValueError(f"context must be at least 1, got {context}")
        self.tokens, self.context = tokens, context
        self.vocab_size = tokens.manifest.vocab_size
        self.num_windows = max(0, len(tokens) - 1) // context
        self.num_with_shorter = -(-max(0, len(tokens) - 1) // context)
        """Whole windows and the shorter window behind them, if tokens are left for it."""
        if self.num_windows == 0:
            raise ValueError(
                f"{tokens.folder}: {len(tokens):,} {tokens.split} tokens do not fill a window "
                f"of {context:,}; take a smaller context, or prepare more {tokens.split} text"
            )

    def read(self, indices: Int[np.ndarray, " windows"]) -> Labelled:
        """Inputs and labels of whole windows."""
        rows = np.empty((len(indices), self.context + 1), dtype=np.int64)
        for row, index in zip(rows, indices, strict=True):
            row[:] = self.row(int(index))
        return Labelled(rows[:, :-1], rows[:, 1:])

    def row(self, index: int) -> Int[np.ndarray, " tokens"]:
        """The tokens of any window, the label of its last position included."""
        start = index * self.context
        stop = min(start + self.context + 1, len(self.tokens))
        return self.tokens.read(start, stop).astype(np.int64)


@dataclass(frozen=True)
class DrawnWindows:
    """Windows drawn for a measurement, and the positions at which predictions are read."""

    tokens: Int[np.ndarray, "windows context"]
    positions: Int[np.ndarray, " positions"]

    @property
    def targets(self) -> Int[np.ndarray, "windows positions"]:
        """The token after each position."""
        return self.tokens[:, self.positions + 1]


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Which windows are drawn: `num` of them under a seed, in one of several disjoint draws."""

    num: int
    num_positions: int
    """Positions of each window at which predictions are read."""
    seed: int
    number: int = 0
    """Draws with different numbers share no window."""

    def indices(self, available: int, *, of: str) -> Int[np.ndarray, " windows"]:
        """The numbers of the drawn windows among `available` windows; `of` names them in errors."""
        if self.num < 1 or (self.number + 1) * self.num > available:
            raise ValueError(
                f"{of}: there are {available}, and draw {self.number} of {self.num} needs more"
            )
        order = np.random.default_rng(self.seed).permutation(available)
        return order[self.number * self.num : (self.number + 1) * self.num]


def check_samples(num: int, characters: int) -> None:
    """Reject a number of samples to show, or a length, that shows nothing."""
    for name, value in (("samples", num), ("characters", characters)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def spread_positions(context: int, num: int) -> Int[np.ndarray, " positions"]:
    """Evenly spaced positions in the second half of a window; each has a next token in it."""
    first, last = context // 2, context - 2
    if num < 1 or last - first + 1 < num:
        most = max(0, last - first + 1)
        raise ValueError(f"a context of {context} tokens has room for {most} positions, not {num}")
    return np.unique(np.linspace(first, last, num).round().astype(np.int64))
