"""Transport in figures, each with an interval over windows."""

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
"""The marginal ITR above which the paper counts a pass as new."""


@dataclass(frozen=True)
class _Means:
    """Means over windows, of one set of layers; the first axis may be resamples."""

    gram: Float[np.ndarray, "... passes passes"]
    hellinger_squared: Float[np.ndarray, "... passes"]
    target_gain: Float[np.ndarray, "... passes"]
    top1_flips: Float[np.ndarray, "... passes"]


class _Interval(NamedTuple):
    """Values with the ends of their intervals: of one figure, or of a figure of every pass."""

    value: np.ndarray
    lower: np.ndarray
    upper: np.ndarray

    def estimate(self) -> Estimate:
        """One figure."""
        value, lower, upper = map(float, self)
        return Estimate(value=value, lower=lower, upper=upper, over="windows")

    def partial_estimate(self) -> PartialEstimate:
        """One figure that may be undefined."""
        value, lower, upper = (None if np.isnan(end) else float(end) for end in self)
        return PartialEstimate(value=value, lower=lower, upper=upper, over="windows")

    def by_pass(self) -> "list[_Interval]":
        """The figure of each pass."""
        return [_Interval(*ends) for ends in zip(*self, strict=True)]


def summarise(found: Trajectories, *, seed: int = 0) -> TransportSummary:
    """All figures and their intervals, together and by layer, and the paper's counts of pairs."""
    num_windows = found.gram.shape[1]
    if num_windows < 2:
        raise ValueError(f"{num_windows} windows have no interval; take two or more")
    once, weights = _weights(num_windows, seed)
    together = _figures(found, range(len(found.layers)), once, weights)
    layers = [
        LayerFigures(layer=layer, **vars(_figures(found, [row], once, weights)))
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
    """The cost of each intervention, and whether passes that are new cost most when skipped.

    The rank correlation is over later (layer, pass) pairs, between the marginal ITR of a pass and
    the cost of skipping it; both are resampled with the same windows.
    """
    once, weights = _weights(found.gram.shape[1], seed)
    point, drawn = (_novelty_and_cost(found, costs["skip"], w) for w in (once, weights))
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
    """A noise floor, ready to be written."""
    return NoiseFloorFigures(
        wider_type=noise.wider_type,
        windows=noise.windows,
        hellinger_squared=tuple(noise.hellinger_squared.tolist()),
        share=tuple(noise.share.tolist()),
        marginal_itr=tuple(noise.marginal_itr.tolist()),
    )


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
) -> PassFigures:
    point, resampled = (_means(found, list(rows), w) for w in (once, weights))

    def interval(figure: Callable[[_Means], np.ndarray]) -> _Interval:
        return _Interval(figure(point)[0], *_quantiles(figure(resampled)))

    def of_each_pass(figure: Callable[[_Means], np.ndarray]) -> tuple[Estimate, ...]:
        return tuple(one.estimate() for one in interval(figure).by_pass())

    by_depth = interval(lambda means: itr_by_depth(means.gram))
    return PassFigures(
        itr=interval(lambda means: itr(means.gram)).partial_estimate(),
        itr_by_depth=tuple(one.partial_estimate() for one in by_depth.by_pass()),
        marginal_itr=of_each_pass(lambda means: marginal_itr(means.gram)),
        hellinger_squared=of_each_pass(lambda means: means.hellinger_squared),
        target_gain=of_each_pass(lambda means: means.target_gain),
        later_gain=interval(lambda means: means.target_gain[..., 1:].sum(axis=-1)).estimate(),
        later_share=interval(lambda means: later_share(means.hellinger_squared)).partial_estimate(),
        top1_flips=of_each_pass(lambda means: means.top1_flips),
    )


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
