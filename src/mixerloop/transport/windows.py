"""Windows for transport: drawn token ids, and batches of windows on a device."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mixerloop.data.windows import DrawnWindows, spread_positions

WINDOWS_AT_ONCE = 8
"""Of one worker; there is one on each core."""


class Batch(NamedTuple):
    """Windows that run together."""

    tokens: Int[Tensor, "windows context"]
    positions: Int[Tensor, " positions"]
    targets: Int[Tensor, "windows positions"]
    """The token after each position."""


def batches_of(
    windows: DrawnWindows, device: torch.device, at_once: int = WINDOWS_AT_ONCE
) -> Iterator[tuple[slice, Batch]]:
    """All windows in order, some at a time, each batch with the slice of its windows."""
    num_windows = len(windows.tokens)
    for start in range(0, num_windows, at_once):
        here = slice(start, min(start + at_once, num_windows))
        arrays = (windows.tokens[here], windows.positions, windows.targets[here])
        yield here, Batch(*(torch.from_numpy(array).to(device) for array in arrays))


def uniform_windows(
    vocab_size: int, *, num: int, context: int, num_positions: int, seed: int, draw: int = 0
) -> DrawnWindows:
    """Token ids drawn uniformly, for models that have learned nothing."""
    generator = np.random.default_rng([seed, draw])
    tokens = generator.integers(vocab_size, size=(num, context))
    return DrawnWindows(tokens, spread_positions(context, num_positions))
