"""Transport in figures, each with an interval over windows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from mixerloop.intervals import LEVEL
from mixerloop.transport.metrics import itr, itr_by_depth, later_share, marginal_itr
from mixerloop.transport.trajectory import Trajectories

RESAMPLES = 1000
NOVEL = 0.5
"""The marginal ITR above which the paper counts a pass as new."""


@dataclass(frozen=True)
class _Means:
    """Means over windows, of one set of layers; the first axis may be resamples."""

    gram: Float[np.ndarray, "... passes passes"]
    hellinger_squared: Float[np.ndarray, "... passes"]
    target_gain: Float[np.ndarray, "... passes"]
    top1_flips: Float[np.ndarray, "... passes"]


FIGURES: dict[str, Callable[[_Means], np.ndarray]] = {
    "itr": lambda means: itr(means.gram),
    "itr_by_depth": lambda means: itr_by_depth(means.gram),
    "marginal_itr": lambda means: marginal_itr(means.gram),
    "hellinger_squared": lambda means: means.hellinger_squared,
    "target_gain": lambda means: means.target_gain,
    "later_gain": lambda means: means.target_gain[..., 1:].sum(axis=-1),
    "later_share": lambda means: later_share(means.hellinger_squared),
    "top1_flips": lambda means: means.top1_flips,
}
"""What is told of all layers together, and of each."""


def summarise(found: Trajectories, *, seed: int = 0) -> dict[str, Any]:
    """All figures and their intervals, together and by layer, and the paper's counts of pairs."""
    num_windows = found.gram.shape[1]
    if num_windows < 2:
        raise ValueError(f"{num_windows} windows have no interval; take two or more")
    drawn = np.random.default_rng(seed).integers(num_windows, size=(RESAMPLES, num_windows))
    weights = np.stack([np.bincount(one, minlength=num_windows) for one in drawn]) / num_windows
    once = np.full((1, num_windows), 1 / num_windows)
    together = _figures(found, range(len(found.layers)), once, weights)
    layers = []
    for row, layer in enumerate(found.layers):
        figures = _figures(found, [row], once, weights)
        layers.append({"layer": layer, **figures})
    later = [
        (layer["marginal_itr"][index], layer["target_gain"][index])
        for layer, count in zip(layers, found.num_passes, strict=True)
        for index in range(1, count)
    ]
    return {
        **together,
        "pairs_total": len(later),
        "pairs_novel": sum(novelty > NOVEL for novelty, _ in later),
        "pairs_positive": sum(gain > 0 for _, gain in later),
        "layers": layers,
        "native_max_abs_error": found.native_max_abs_error,
    }


def _figures(
    found: Trajectories, rows: "range | list[int]", once: np.ndarray, weights: np.ndarray
) -> dict[str, Any]:
    """Values, and beside each the ends of its interval."""
    point, resampled = (_means(found, list(rows), w) for w in (once, weights))
    result: dict[str, Any] = {}
    for name, figure in FIGURES.items():
        value = figure(point)[0]
        low, high = _quantiles(figure(resampled))
        result[name] = _listed(value)
        result[f"{name}_interval"] = _listed(np.stack([low, high], axis=-1))
    return result


def _listed(values: np.ndarray) -> Any:
    """Numbers for JSON; none where there is no number, because nothing moves."""
    if values.ndim:
        return [_listed(one) for one in values]
    return None if np.isnan(values) else float(values)


def _quantiles(drawn: np.ndarray) -> np.ndarray:
    """The ends of the interval; no number where a resample has none."""
    return np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)


def _means(
    found: Trajectories, rows: list[int], weights: Float[np.ndarray, "resamples windows"]
) -> _Means:
    """Layers and windows with equal weight; a pass is averaged over the layers that make it."""
    most = max(found.num_passes[row] for row in rows)
    made = np.array([[number < found.num_passes[row] for number in range(most)] for row in rows])

    def mean(sums: np.ndarray) -> np.ndarray:
        by_layer = np.einsum("rw,lwp->rlp", weights, sums[rows][..., :most])
        return by_layer.sum(axis=1) / made.sum(axis=0)

    gram = np.einsum("rw,lwpq->rpq", weights, found.gram[rows][..., :most, :most]) / len(rows)
    return _Means(
        gram=gram,
        hellinger_squared=mean(found.hellinger_squared),
        target_gain=mean(found.target_gain),
        top1_flips=mean(found.top1_flips),
    )
