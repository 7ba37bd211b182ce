"""Which windows are looked at, drawn under a seed; another draw has none of the same."""

import numpy as np

from mixerloop.data.hops import Hops
from mixerloop.data.shards import TokenSplit
from mixerloop.transport.trajectory import Windows, spread_positions


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
