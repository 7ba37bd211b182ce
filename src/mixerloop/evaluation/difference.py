"""Whether two architectures differ: by more than other examples, or other seeds, would make them.

Every run is scored on the same resampled examples, so what makes an example easy or hard for all
falls out of a difference. Seeds are few, and resampling two or three of them would say far too
little of how seeds vary; they enter by their variance and a t distribution instead.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from mixerloop.intervals import estimate
from mixerloop.results import Estimate, Over

Verdict = Literal["resolved", "not resolved"]
PAIRS_FROM = 4
"""Seeds; fewer pairs leave so few degrees of freedom that pairing widens an interval."""
SEED_DRAWS = 100
"""Draws of the seeds' part for each of the examples': the tails of t are long."""


class Scores(NamedTuple):
    """A score of several runs, and the same on resampled examples."""

    points: Float[np.ndarray, " runs"]
    replicates: Float[np.ndarray, "resamples runs"]

    def of(self, runs: "tuple[int, ...] | list[int] | range") -> "Scores":
        """Those of some runs."""
        return Scores(self.points[list(runs)], self.replicates[:, list(runs)])


@dataclass(frozen=True, kw_only=True)
class Difference(Estimate):
    """First minus second, with a 95 % interval."""

    verdict: Verdict
    """Resolved: zero is outside the interval."""


def judged(found: Estimate) -> Difference:
    """A difference with its verdict."""
    zero_is_outside = found.lower > 0 or found.upper < 0
    return Difference(
        value=found.value,
        lower=found.lower,
        upper=found.upper,
        over=found.over,
        verdict="resolved" if zero_is_outside else "not resolved",
    )


class _SeedNoise(NamedTuple):
    """How a difference of means varies because runs of one architecture differ."""

    variance: float
    """By their seeds and, given finitely many examples, by chance."""
    freedom: float
    chance: float
    """What of the variance the examples explain."""


def difference(
    first: Scores, second: Scores, *, same_seeds: bool, over: Over = "examples", seed: int = 0
) -> Difference:
    """The mean of the first runs minus that of the second.

    Runs of one architecture are its seeds; with `same_seeds` run i of both had the same. Where both
    have one run only, the interval is over the resampled units, which `over` names, and says
    nothing of other seeds; where one has, its seeds are taken to vary as the other's do.
    """
    value = float(first.points.mean() - second.points.mean())
    by_examples = first.replicates.mean(axis=1) - second.replicates.mean(axis=1)
    by_examples = by_examples[np.isfinite(by_examples)]
    if same_seeds and len(first.points) >= PAIRS_FROM:
        pairs = Scores(first.points - second.points, first.replicates - second.replicates)
        noise = _noise(pairs)
    else:
        noise = _noise_of_two(first, second)
    if noise is None:
        return judged(estimate(value, by_examples, over=over))
    # The seeds' part holds what chance does to single runs, so it is taken out of the examples'.
    left = 1 - noise.chance / max(by_examples.var(), np.finfo(float).tiny)
    example_part = np.tile(np.sqrt(max(0.0, left)) * (by_examples - value), SEED_DRAWS)
    generator = np.random.default_rng([seed, SEED_DRAWS])
    seed_part = generator.standard_t(noise.freedom, len(example_part)) * np.sqrt(noise.variance)
    together = value + example_part + seed_part
    return judged(estimate(value, together, over="seeds and examples"))


def _noise(scores: Scores) -> _SeedNoise | None:
    """Of the mean of some runs; none where there is one."""
    size = len(scores.points)
    if size < 2:
        return None
    chance = np.nanmean((scores.replicates - scores.points).var(axis=1, ddof=1))
    return _SeedNoise(scores.points.var(ddof=1) / size, size - 1, float(chance) / size)


def _noise_of_two(first: Scores, second: Scores) -> _SeedNoise | None:
    """Of the difference of two means, whose runs may vary unequally (Welch)."""
    one, other = _noise(first), _noise(second)
    if one is None and other is None:
        return None
    if one is None or other is None:
        known, size = (first, len(first.points)) if other is None else (second, len(second.points))
        noise = _noise(known)
        assert noise is not None
        return _SeedNoise(noise.variance * (1 + size), noise.freedom, noise.chance * (1 + size))
    variance = one.variance + other.variance
    parts = one.variance**2 / one.freedom + other.variance**2 / other.freedom
    freedom = variance**2 / parts if parts else one.freedom + other.freedom
    return _SeedNoise(variance, freedom, one.chance + other.chance)
