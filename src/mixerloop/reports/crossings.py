"""Where the curves of two models cross: the budget at which one overtakes the other.

A crossing lies between two budgets that were trained, on a straight line over the logarithm of the
tokens. Nothing is said beyond the smallest and the largest budget.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mixerloop.evaluation.difference import SEEDS_FOR_VERDICT
from mixerloop.intervals import LEVEL, RESAMPLES
from mixerloop.results import Estimate


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The NLL of a model at increasing budgets."""

    tokens: tuple[int, ...]
    nll: Float[np.ndarray, "budgets seeds"]


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """How the order of two models changes over the budgets that both were trained with."""

    ahead_first: bool
    """Whether the first model is ahead at the smallest budget."""
    ahead_last: bool
    """Whether the first model is ahead at the largest budget."""
    tokens: Estimate | None
    """The budget at which the order changes, with its interval over seeds; None if it does not
    change, or changes more than once."""
    share: float
    """The share of resamples in which the order changes exactly once."""
    seeds: int

    @property
    def is_resolved(self) -> bool:
        """Whether the order changes in 97.5 % of the resamples of three seeds or more.

        That is 95 % for a lead that could be either way, as for a difference.
        """
        return (
            self.tokens is not None
            and self.share >= (1 + LEVEL) / 2
            and self.seeds >= SEEDS_FOR_VERDICT
        )


def crossing(first: Curve, second: Curve, *, seed: int = 0) -> Crossing:
    """Compare two curves over the same budgets and seeds.

    A resample draws the difference at each budget from Student's t around its mean. To draw from
    the seeds themselves would make three seeds look far surer than they are.
    """
    assert first.tokens == second.tokens
    assert first.nll.shape == second.nll.shape
    differences = first.nll - second.nll
    logs = np.log(first.tokens)
    at = _crossing_at(differences.mean(axis=1), logs)
    resampled = differences.mean(axis=1) + _chance(first, second, np.random.default_rng(seed))
    places = [place for row in resampled if (place := _crossing_at(row, logs)) is not None]
    tokens = None
    if at is not None and places:
        lower, upper = np.quantile(places, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        tokens = Estimate(
            value=math.exp(at), lower=math.exp(lower), upper=math.exp(upper), over="seeds"
        )
    means = differences.mean(axis=1)
    return Crossing(
        ahead_first=bool(means[0] < 0),
        ahead_last=bool(means[-1] < 0),
        tokens=tokens,
        share=len(places) / len(resampled),
        seeds=differences.shape[1],
    )


def _chance(
    first: Curve, second: Curve, generator: np.random.Generator
) -> Float[np.ndarray, "resamples budgets"]:
    """How far the mean differences of other seeds would be off (Welch); nothing for one seed."""
    num_budgets, num_seeds = first.nll.shape
    if num_seeds == 1:
        return np.zeros((1, num_budgets))
    one, other = (curve.nll.var(axis=1, ddof=1) / num_seeds for curve in (first, second))
    both = np.maximum(one + other, np.finfo(float).tiny)
    freedom = (num_seeds - 1) * both**2 / np.maximum(one**2 + other**2, np.finfo(float).tiny)
    return np.sqrt(both) * generator.standard_t(
        np.clip(freedom, num_seeds - 1, 2 * (num_seeds - 1)), (RESAMPLES, num_budgets)
    )


def _crossing_at(
    differences: Float[np.ndarray, " budgets"], logs: Float[np.ndarray, " budgets"]
) -> float | None:
    """The logarithm of the tokens at which a difference changes its sign; None unless once."""
    is_ahead = differences < 0
    (changes,) = np.nonzero(is_ahead[1:] != is_ahead[:-1])
    if len(changes) != 1:
        return None
    before = int(changes[0])
    low, high = differences[before], differences[before + 1]
    share = low / (low - high)
    return float(logs[before] + share * (logs[before + 1] - logs[before]))


def crossing_text(names: Sequence[str], found: Crossing, *, parameters: Sequence[int]) -> str:
    """A sentence about two models with these numbers of parameters."""
    first, second = names
    if found.tokens is None and found.ahead_first == found.ahead_last:
        leader = first if found.ahead_first else second
        return f"{leader} is ahead at the smallest and at the largest budget"
    if found.tokens is None:
        return "the order changes more than once"
    overtakes, overtaken = (first, second) if found.ahead_last else (second, first)
    per = min(parameters)
    figures = [found.tokens.value, found.tokens.lower, found.tokens.upper]
    value, lower, upper = (f"{figure / per:.1f}" for figure in figures)
    if found.seeds < SEEDS_FOR_VERDICT:
        sure = f", no verdict: {found.seeds} of {SEEDS_FOR_VERDICT} seeds"
    elif found.is_resolved:
        sure = ""
    else:
        sure = f", not resolved: in {found.share:.0%} of the resamples"
    return (
        f"{overtakes} overtakes {overtaken} at {value} [{lower}, {upper}] tokens a parameter{sure}"
    )
