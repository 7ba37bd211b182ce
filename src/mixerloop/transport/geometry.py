"""The geometry of a trajectory at the readout, from the Gram matrix of its increments.

Increment r is the change that restoring pass r makes: d_r = s_r - s_(r-1), where s is the square
root of the predicted distribution. The Gram matrices may have leading axes, such as resamples.
"""

import numpy as np
from jaxtyping import Bool, Float

NOTHING = 1e-6  # relative to the largest norm; a shorter sum of increments counts as zero
RANK_CUT = 1e-8  # relative to the largest eigenvalue; smaller eigenvalues are not inverted
SMALLEST = np.finfo(np.float64).tiny  # a smaller squared length has no digits to divide by

Gram = Float[np.ndarray, "... passes passes"]


def itr(increments: Gram) -> Float[np.ndarray, "..."]:
    """Iterative Transport Rank: the number of directions the cumulative trajectory spreads over.

    Between 1 and the number of passes; NaN if no pass moves the prediction.
    """
    size = increments.shape[-1]
    sums = np.tril(np.ones((size, size)))
    cumulative = sums @ increments @ sums.T
    norms = _norms(cumulative)
    moves = (norms > 0) & (norms >= NOTHING * norms.max(axis=-1, keepdims=True))
    cosines = _cosines(cumulative, moves)
    trace = moves.sum(axis=-1).astype(float)
    squares = (cosines**2).sum(axis=(-2, -1))
    return np.divide(trace**2, squares, out=np.full_like(trace, np.nan), where=squares > 0)


def itr_by_depth(increments: Gram) -> Float[np.ndarray, "... passes"]:
    """ITR of the first pass, of the first two, and so on."""
    size = increments.shape[-1]
    return np.stack([itr(increments[..., :n, :n]) for n in range(1, size + 1)], axis=-1)


def marginal_itr(increments: Gram) -> Float[np.ndarray, "... passes"]:
    """The share of each increment that no earlier increment can express; 0 for a zero increment.

    Increments are scaled to length 1 first: however short, an increment expresses its direction.
    """
    size = increments.shape[-1]
    moves = np.diagonal(increments, axis1=-2, axis2=-1) >= SMALLEST
    cosines = _cosines(increments, moves)
    novelty = [np.ones(increments.shape[:-2])]
    for index in range(1, size):
        with_earlier = cosines[..., :index, index]
        inverse = np.linalg.pinv(cosines[..., :index, :index], rcond=RANK_CUT, hermitian=True)
        novelty.append(1 - np.einsum("...i,...ij,...j->...", with_earlier, inverse, with_earlier))
    return np.where(moves, np.clip(np.stack(novelty, axis=-1), 0.0, 1.0), 0.0)


def later_share(effects: Float[np.ndarray, "... passes"]) -> Float[np.ndarray, "..."]:
    """The share of the summed effects that comes after the first pass; NaN if the sum is zero."""
    total = effects.sum(axis=-1)
    later = effects[..., 1:].sum(axis=-1)
    return np.divide(later, total, out=np.full_like(total, np.nan), where=total > 0)


def _norms(gram: Gram) -> Float[np.ndarray, "... passes"]:
    return np.sqrt(np.maximum(np.diagonal(gram, axis1=-2, axis2=-1), 0.0))


def _cosines(gram: Gram, moves: Bool[np.ndarray, "... passes"]) -> Gram:
    """The Gram matrix of the vectors at length 1; zero for vectors that count as zero."""
    norms = np.where(moves, _norms(gram), 1.0)
    cosines = gram / (norms[..., :, None] * norms[..., None, :])
    return np.where(moves[..., :, None] & moves[..., None, :], cosines, 0.0)
