"""The order of windows: a permutation that is computed and not stored.

The permutation is a Feistel network over the smallest even number of bits that holds every index. A
result outside the range goes through the network again until it is inside. Nothing is stored, even
for 10^10 windows. Each epoch has its own keys.
"""

import numpy as np

from mixerloop.data.random import scramble, stream_key

ROUNDS = 6  # four make a Feistel network pseudorandom; two more cost little


class Permutation:
    """A permutation of `range(size)` chosen by a seed and an epoch."""

    def __init__(self, size: int, *, seed: int, epoch: int) -> None:
        if size < 1:
            raise ValueError(f"nothing to put in order: {size} windows")
        self.size = size
        self._half_bits = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)
        self._keys = [stream_key("order", seed, epoch, round_) for round_ in range(ROUNDS)]

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        """The permuted index of each of these indices."""
        permuted = self._network(indices.astype(np.uint64))
        while (outside := permuted >= self.size).any():
            permuted[outside] = self._network(permuted[outside])
        return permuted.astype(np.int64)

    def _network(self, x: np.ndarray) -> np.ndarray:
        left, right = x >> self._half_bits, x & self._mask
        for key in self._keys:
            left, right = right, left ^ (scramble(right ^ key) & self._mask)
        return (left << self._half_bits) | right
