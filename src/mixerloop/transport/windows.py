"""Windows for transport: windows of random token ids, and batches of windows on a device."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mixerloop.data.windows import DrawnWindows, spread_positions

WINDOWS_AT_ONCE = 8
"""The number of windows in a batch of one worker; every core has a worker."""


class Batch(NamedTuple):
    """Windows that run as one batch, and the positions at which predictions are read."""

    tokens: Int[Tensor, "windows context"]
    positions: Int[Tensor, " positions"]
    targets: Int[Tensor, "windows positions"]
    """The token after each position."""


def batches_of(
    windows: DrawnWindows, device: torch.device, at_once: int = WINDOWS_AT_ONCE
) -> Iterator[tuple[slice, Batch]]:
    """All windows in order, in batches of `at_once`, each with the slice of its windows."""
    num_windows = len(windows.tokens)
    for start in range(0, num_windows, at_once):
        here = slice(start, min(start + at_once, num_windows))
        arrays = (windows.tokens[here], windows.positions, windows.targets[here])
        yield here, Batch(*(torch.from_numpy(array).to(device) for array in arrays))


def uniform_windows(
    vocab_size: int, *, num: int, context: int, num_positions: int, seed: int, draw: int = 0
) -> DrawnWindows:
    """Windows of uniformly drawn token ids, for models with fresh weights."""
    generator = np.random.default_rng([seed, draw])
    tokens = generator.integers(vocab_size, size=(num, context))
    return DrawnWindows(tokens, spread_positions(context, num_positions))
