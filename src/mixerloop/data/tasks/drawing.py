"""Integers from random numbers, for the sequences of tasks."""

import numpy as np
from jaxtyping import Int, UInt64


def below(
    limit: int | Int[np.ndarray, "..."], numbers: UInt64[np.ndarray, "*shape"]
) -> Int[np.ndarray, "*shape"]:
    """Integers from 0 to `limit` - 1, one for each random number; a limit may be an array."""
    return (numbers % np.asarray(limit, dtype=np.uint64)).astype(np.int64)
