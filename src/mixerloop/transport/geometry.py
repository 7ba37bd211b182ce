"""The geometry of a trajectory at the readout, from the Gram matrix of its increments.

Increment r is what restoring pass r changes: d_r = s_r - s_(r-1), with s the square root of the
predicted distribution. All functions take stacks of matrices and work on the last two axes.
"""

import numpy as np
from jaxtyping import Float

NOTHING = 1e-6  # of the largest norm; a direction below it counts as zero
RANK_CUT = 1e-8  # of the largest eigenvalue of the Gram matrix projected on

Gram = Float[np.ndarray, "... passes passes"]


def itr(increments: Gram) -> Float[np.ndarray, "..."]:
    """Iterative Transport Rank: how many directions the cumulative trajectory spreads over.

    Between 1 and the number of passes; not a number where nothing moves.
    """
    size = increments.shape[-1]
    sums = np.tril(np.ones((size, size)))
    cumulative = sums @ increments @ sums.T
    norms = _norms(cumulative)
    moves = _is_something(norms)
    unit = np.where(moves, norms, 1.0)
    cosines = cumulative / (unit[..., :, None] * unit[..., None, :])
    cosines = np.where(moves[..., :, None] & moves[..., None, :], cosines, 0.0)
    trace = moves.sum(axis=-1).astype(float)
    squares = (cosines**2).sum(axis=(-2, -1))
    return np.divide(trace**2, squares, out=np.full_like(trace, np.nan), where=squares > 0)


def itr_by_depth(increments: Gram) -> Float[np.ndarray, "... passes"]:
    """ITR of the first pass, of the first two, and so on."""
    size = increments.shape[-1]
    return np.stack([itr(increments[..., :n, :n]) for n in range(1, size + 1)], axis=-1)


def marginal_itr(increments: Gram) -> Float[np.ndarray, "... passes"]:
    """The share of each increment that no earlier increment can express; 0 for none at all."""
    size = increments.shape[-1]
    moves = _is_something(_norms(increments))
    new = [np.ones(increments.shape[:-2])]
    for index in range(1, size):
        earlier = increments[..., :index, :index]
        with_earlier = increments[..., :index, index]
        own = increments[..., index, index]
        inverse = np.linalg.pinv(earlier, rcond=RANK_CUT, hermitian=True)
        expressed = np.einsum("...i,...ij,...j->...", with_earlier, inverse, with_earlier)
        new.append(1 - expressed / np.where(own > 0, own, 1.0))
    return np.where(moves, np.clip(np.stack(new, axis=-1), 0.0, 1.0), 0.0)


def later_share(effects: Float[np.ndarray, "... passes"]) -> Float[np.ndarray, "..."]:
    """How much of the summed effects comes after the first pass."""
    total = effects.sum(axis=-1)
    later = effects[..., 1:].sum(axis=-1)
    return np.divide(later, total, out=np.full_like(total, np.nan), where=total > 0)


def _norms(gram: Gram) -> Float[np.ndarray, "... passes"]:
    return np.sqrt(np.maximum(np.diagonal(gram, axis1=-2, axis2=-1), 0.0))


def _is_something(norms: Float[np.ndarray, "... passes"]) -> np.ndarray:
    return (norms > 0) & (norms >= NOTHING * norms.max(axis=-1, keepdims=True))
