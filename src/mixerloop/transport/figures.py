"""The figures of transport, each with an interval over windows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from mixerloop.intervals import LEVEL
from mixerloop.results import Estimate, PartialEstimate
from mixerloop.transport.geometry import itr, itr_by_depth, later_share, marginal_itr
from mixerloop.transport.noise import NoiseFloor
from mixerloop.transport.removal import Costs, Removal, spearman
from mixerloop.transport.result import (
    LayerFigures,
    NoiseFloorFigures,
    PassFigures,
    RemovalCost,
    RemovalFigures,
    TransportSummary,
)
from mixerloop.transport.trajectories import Trajectories

RESAMPLES = 1000
NOVEL = 0.5
"""The paper counts a pass as novel if its marginal ITR is above this."""


@dataclass(frozen=True)
class _Means:
    """Means over windows for one set of layers; the first axis may be resamples."""

    gram: Float[np.ndarray, "... passes passes"]
    hellinger_squared: Float[np.ndarray, "... passes"]
    target_gain: Float[np.ndarray, "... passes"]
    top1_flips: Float[np.ndarray, "... passes"]


class _Interval(NamedTuple):
    """Values and the ends of their intervals, for one figure or for a figure of every pass."""

    value: np.ndarray
    lower: np.ndarray
    upper: np.ndarray

    def estimate(self) -> Estimate:
        """Convert a single figure."""
        value, lower, upper = map(float, self)
        return Estimate(value=value, lower=lower, upper=upper, over="windows")

    def partial_estimate(self) -> PartialEstimate:
        """Convert a single figure that may be undefined."""
        value, lower, upper = (None if np.isnan(end) else float(end) for end in self)
        return PartialEstimate(value=value, lower=lower, upper=upper, over="windows")

    def by_pass(self) -> "list[_Interval]":
        """Split a figure of every pass into one interval per pass."""
        return [_Interval(*ends) for ends in zip(*self, strict=True)]


def summarise(found: Trajectories, *, seed: int = 0) -> TransportSummary:
    """All figures with intervals, for all layers and by layer, and the paper's counts of pairs."""
    num_windows = found.gram.shape[1]
    if num_windows < 2:
        raise ValueError(f"{num_windows} windows have no interval; take two or more")
    equal_weights, weights = _weights(num_windows, seed)
    together = _figures(found, range(len(found.layers)), equal_weights, weights)
    layers = [
        LayerFigures(layer=layer, **vars(_figures(found, [row], equal_weights, weights)))
        for row, layer in enumerate(found.layers)
    ]
    later = [
        (layer.marginal_itr[index].value, layer.target_gain[index].value)
        for layer, count in zip(layers, found.num_passes, strict=True)
        for index in range(1, count)
    ]
    return TransportSummary(
        **vars(together),
        pairs_total=len(later),
        pairs_novel=sum(novelty > NOVEL for novelty, _ in later),
        pairs_positive=sum(gain > 0 for _, gain in later),
        layers=tuple(layers),
        intact_max_abs_error=found.intact_max_abs_error,
    )


def summarise_removals(
    found: Trajectories, costs: dict[Removal, Costs], *, seed: int = 0
) -> RemovalFigures:
    """The cost of each intervention, and whether novel passes cost most when skipped.

    The rank correlation is between the marginal ITR of a pass and the cost of skipping the pass,
    over (layer, pass) pairs after the first pass. Both are resampled with the same windows.
    """
    equal_weights, weights = _weights(found.gram.shape[1], seed)
    point, drawn = (_novelty_and_cost(found, costs["skip"], w) for w in (equal_weights, weights))
    correlation = _Interval(spearman(*point)[0], *_quantiles(spearman(*drawn)))
    return RemovalFigures(
        skip=_removal_costs(costs["skip"], weights),
        ffn_off=_removal_costs(costs["ffn_off"], weights),
        swap_order=_removal_costs(costs["swap_order"], weights),
        spearman_marginal_itr_and_skip=correlation.partial_estimate(),
    )


def _removal_costs(costs: Costs, weights: np.ndarray) -> tuple[RemovalCost, ...]:
    changes = _Interval(costs.nll.mean(axis=1), *_quantiles(weights @ costs.nll.T))
    return tuple(
        RemovalCost(
            layer=occurrence.layer,
            pass_number=occurrence.pass_index + 1,
            delta_nll=change.estimate(),
        )
        for occurrence, change in zip(costs.occurrences, changes.by_pass(), strict=True)
    )


def noise_floor_figures(noise: NoiseFloor) -> NoiseFloorFigures:
    """Convert the arrays of a noise floor to the fields of a result."""
    return NoiseFloorFigures(
        wider_type=noise.wider_type,
        windows=noise.windows,
        hellinger_squared=tuple(noise.hellinger_squared.tolist()),
        share=tuple(noise.share.tolist()),
        marginal_itr=tuple(noise.marginal_itr.tolist()),
    )


def _novelty_and_cost(
    trajectories: Trajectories, costs: Costs, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The marginal ITR and the skip cost of every later pass, [resamples, pairs] each."""
    row_of = {
        (occurrence.layer, occurrence.pass_index): row
        for row, occurrence in enumerate(costs.occurrences)
    }
    novelty, cost = [], []
    for row, (layer, count) in enumerate(
        zip(trajectories.layers, trajectories.num_passes, strict=True)
    ):
        new = marginal_itr(_means(trajectories, [row], weights).gram)
        for number in range(1, count):
            novelty.append(new[:, number])
            cost.append(weights @ costs.nll[row_of[layer, number]])
    if not novelty:
        empty = np.empty((len(weights), 0))
        return empty, empty
    return np.stack(novelty, axis=1), np.stack(cost, axis=1)


def _weights(num_windows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The weights of windows: equal weights, and the weights in every resample."""
    drawn = np.random.default_rng(seed).integers(num_windows, size=(RESAMPLES, num_windows))
    weights = (
        np.stack([np.bincount(resample, minlength=num_windows) for resample in drawn]) / num_windows
    )
    return np.full((1, num_windows), 1 / num_windows), weights


def _figures(
    trajectories: Trajectories,
    rows: "range | list[int]",
    equal_weights: np.ndarray,
    weights: np.ndarray,
) -> PassFigures:
    point, resampled = (_means(trajectories, list(rows), w) for w in (equal_weights, weights))

    def interval(figure: Callable[[_Means], np.ndarray]) -> _Interval:
        return _Interval(figure(point)[0], *_quantiles(figure(resampled)))

    def of_each_pass(figure: Callable[[_Means], np.ndarray]) -> tuple[Estimate, ...]:
        return tuple(of_pass.estimate() for of_pass in interval(figure).by_pass())

    by_depth = interval(lambda means: itr_by_depth(means.gram))
    return PassFigures(
        itr=interval(lambda means: itr(means.gram)).partial_estimate(),
        itr_by_depth=tuple(of_depth.partial_estimate() for of_depth in by_depth.by_pass()),
        marginal_itr=of_each_pass(lambda means: marginal_itr(means.gram)),
        hellinger_squared=of_each_pass(lambda means: means.hellinger_squared),
        target_gain=of_each_pass(lambda means: means.target_gain),
        later_gain=interval(lambda means: means.target_gain[..., 1:].sum(axis=-1)).estimate(),
        later_share=interval(lambda means: later_share(means.hellinger_squared)).partial_estimate(),
        top1_flips=of_each_pass(lambda means: means.top1_flips),
    )


def _quantiles(drawn: np.ndarray) -> np.ndarray:
    """The ends of the interval; NaN if the figure is NaN in a resample."""
    return np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)


def _means(
    trajectories: Trajectories, rows: list[int], weights: Float[np.ndarray, "resamples windows"]
) -> _Means:
    """Means over layers and windows; a pass is averaged over the layers that run it."""
    most = max(trajectories.num_passes[row] for row in rows)
    is_run = np.array(
        [[number < trajectories.num_passes[row] for number in range(most)] for row in rows]
    )

    def mean(sums: np.ndarray) -> np.ndarray:
        by_layer = np.einsum("rw,lwp->rlp", weights, sums[rows][..., :most])
        return by_layer.sum(axis=1) / is_run.sum(axis=0)

    gram = np.einsum("rw,lwpq->rpq", weights, trajectories.gram[rows][..., :most, :most]) / len(
        rows
    )
    return _Means(
        gram=gram,
        hellinger_squared=mean(trajectories.hellinger_squared),
        target_gain=mean(trajectories.target_gain),
        top1_flips=mean(trajectories.top1_flips),
    )
