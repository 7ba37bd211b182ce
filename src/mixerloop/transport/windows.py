"""Which windows are looked at, drawn under a seed; another draw has none of the same."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mixerloop.data.batches import hops_settings
from mixerloop.data.hops import Hops
from mixerloop.data.shards import TokenSplit

WINDOWS_AT_ONCE = 8
"""Of one worker; there is one on each core."""


class Batch(NamedTuple):
    """Windows that run together."""

    tokens: Int[Tensor, "windows context"]
    positions: Int[Tensor, " positions"]
    targets: Int[Tensor, "windows positions"]
    """The token after each position."""


@dataclass(frozen=True)
class Windows:
    """What is read: tokens, and where in them the prediction is looked at."""

    tokens: Int[np.ndarray, "windows context"]
    positions: Int[np.ndarray, " positions"]

    @property
    def targets(self) -> Int[np.ndarray, "windows positions"]:
        """The token after each position."""
        return self.tokens[:, self.positions + 1]

    def batches(
        self, device: torch.device, at_once: int = WINDOWS_AT_ONCE
    ) -> Iterator[tuple[slice, Batch]]:
        """All windows in order, some at a time, and which they are."""
        num_windows = len(self.tokens)
        for start in range(0, num_windows, at_once):
            here = slice(start, min(start + at_once, num_windows))
            arrays = (self.tokens[here], self.positions, self.targets[here])
            yield here, Batch(*(torch.from_numpy(one).to(device) for one in arrays))


def spread_positions(context: int, num: int) -> Int[np.ndarray, " positions"]:
    """Evenly spaced in the second half; the last one still has a next token in the window."""
    first, last = context // 2, context - 2
    if num < 1 or last - first + 1 < num:
        most = max(0, last - first + 1)
        raise ValueError(f"a context of {context} tokens has room for {most} positions, not {num}")
    return np.unique(np.linspace(first, last, num).round().astype(np.int64))


def held_out_windows(
    data: Path, *, num: int, context: int, num_positions: int, seed: int, draw: int = 0
) -> tuple[Windows, int]:
    """Windows of a prepared folder, and how many token ids it has; hops have their own length."""
    if (settings := hops_settings(data)) is not None:
        hops = Hops(settings, "held_out")
        chosen = hops_windows(hops, num=num, num_positions=num_positions, seed=seed, draw=draw)
        return chosen, hops.vocab_size
    split = TokenSplit(data, "held_out")
    chosen = text_windows(
        split, num=num, context=context, num_positions=num_positions, seed=seed, draw=draw
    )
    return chosen, split.manifest.vocab_size


def text_windows(
    split: TokenSplit, *, num: int, context: int, num_positions: int, seed: int, draw: int = 0
) -> Windows:
    """Windows of held-out text."""
    positions = spread_positions(context, num_positions)
    numbers = _drawn(len(split) // context, num, seed, draw, what=f"{split.folder}: windows")
    tokens = [split.read(int(one) * context, (int(one) + 1) * context) for one in numbers]
    return Windows(np.stack(tokens).astype(np.int64), positions)


def hops_windows(hops: Hops, *, num: int, num_positions: int, seed: int, draw: int = 0) -> Windows:
    """Sequences of hops, looked at where an answer is to be given; the last answers first."""
    numbers = _drawn(hops.num_windows, num, seed, draw, what="sequences of hops")
    sequences, _ = hops.sequences(numbers)
    return Windows(sequences, (hops.answer_positions() - 1)[-num_positions:])


def uniform_windows(
    vocab_size: int, *, num: int, context: int, num_positions: int, seed: int, draw: int = 0
) -> Windows:
    """Token ids that mean nothing, for models that have learned nothing."""
    generator = np.random.default_rng([seed, draw])
    tokens = generator.integers(vocab_size, size=(num, context))
    return Windows(tokens, spread_positions(context, num_positions))


def _drawn(available: int, num: int, seed: int, draw: int, *, what: str) -> np.ndarray:
    if num < 1 or (draw + 1) * num > available:
        raise ValueError(f"{what}: there are {available}, and draw {draw} of {num} needs more")
    order = np.random.default_rng(seed).permutation(available)
    return order[draw * num : (draw + 1) * num]
