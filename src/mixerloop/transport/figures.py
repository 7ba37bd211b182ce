"""Transport in figures, each with an interval over windows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from mixerloop.intervals import LEVEL
from mixerloop.transport.geometry import itr, itr_by_depth, later_share, marginal_itr
from mixerloop.transport.removal import Costs, Removal, spearman
from mixerloop.transport.trajectories import Trajectories

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
    once, weights = _weights(num_windows, seed)
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
        "intact_max_abs_error": found.intact_max_abs_error,
    }


def summarise_removals(
    found: Trajectories, costs: dict[Removal, Costs], *, seed: int = 0
) -> dict[str, Any]:
    """What each intervention costs, and whether passes that are new are the ones that cost most.

    The rank correlation is over later (layer, pass) pairs, between the marginal ITR of a pass and
    what leaving it out costs; both are resampled with the same windows.
    """
    once, weights = _weights(found.gram.shape[1], seed)
    result: dict[str, Any] = {}
    for kind, one in costs.items():
        low, high = _quantiles(weights @ one.nll.T)
        result[kind] = [
            {
                "layer": occurrence.layer,
                "pass": occurrence.pass_index + 1,
                "delta_nll": float(cost),
                "delta_nll_interval": [float(low[row]), float(high[row])],
            }
            for row, (occurrence, cost) in enumerate(
                zip(one.occurrences, one.nll.mean(axis=1), strict=True)
            )
        ]
    point, drawn = (_novelty_and_cost(found, costs["skip"], w) for w in (once, weights))
    result["spearman_marginal_itr_and_skip"] = _listed(spearman(*point)[0])
    result["spearman_marginal_itr_and_skip_interval"] = _listed(_quantiles(spearman(*drawn)))
    return result


def _novelty_and_cost(
    found: Trajectories, costs: Costs, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of every later pass, [resamples, pairs] each."""
    row_of = {(one.layer, one.pass_index): row for row, one in enumerate(costs.occurrences)}
    novelty, cost = [], []
    for row, (layer, count) in enumerate(zip(found.layers, found.num_passes, strict=True)):
        new = marginal_itr(_means(found, [row], weights).gram)
        for number in range(1, count):
            novelty.append(new[:, number])
            cost.append(weights @ costs.nll[row_of[layer, number]])
    if not novelty:
        empty = np.empty((len(weights), 0))
        return empty, empty
    return np.stack(novelty, axis=1), np.stack(cost, axis=1)


def _weights(num_windows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """All windows alike, and in every resample."""
    drawn = np.random.default_rng(seed).integers(num_windows, size=(RESAMPLES, num_windows))
    weights = np.stack([np.bincount(one, minlength=num_windows) for one in drawn]) / num_windows
    return np.full((1, num_windows), 1 / num_windows), weights


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
