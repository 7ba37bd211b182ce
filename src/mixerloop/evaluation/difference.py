"""Whether two architectures differ by more than the choice of examples and seeds explains.

All runs are scored on the same resampled examples, so the difficulty that an example has for all
runs cancels in a difference. Seeds are not resampled, because two or three seeds are too few to
show how seeds vary. Their variance enters through a t distribution instead.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from mixerloop.intervals import estimate
from mixerloop.results import Estimate, Over

Verdict = Literal["resolved", "not resolved"]
PAIRS_FROM = 4
"""The number of seeds from which runs are paired by seed.

Fewer pairs leave so few degrees of freedom that pairing widens an interval.
"""
SEED_DRAWS = 100
"""Draws of the seed part for each resample of the examples; many, as the tails of t are long."""


class Scores(NamedTuple):
    """One score of several runs, on all examples and on resampled examples."""

    points: Float[np.ndarray, " runs"]
    replicates: Float[np.ndarray, "resamples runs"]

    def of(self, runs: "tuple[int, ...] | list[int] | range") -> "Scores":
        """The scores of the runs with these indices."""
        return Scores(self.points[list(runs)], self.replicates[:, list(runs)])


@dataclass(frozen=True, kw_only=True)
class Difference(Estimate):
    """The first score minus the second, with a 95 % interval and a verdict."""

    verdict: Verdict
    """A difference is resolved if zero is outside its interval."""


def judged(found: Estimate) -> Difference:
    """Add the verdict to an estimate of a difference."""
    zero_is_outside = found.lower > 0 or found.upper < 0
    return Difference(
        value=found.value,
        lower=found.lower,
        upper=found.upper,
        over=found.over,
        verdict="resolved" if zero_is_outside else "not resolved",
    )


class _SeedNoise(NamedTuple):
    """The variation of a mean, or of a difference of means, between runs of one architecture."""

    variance: float
    """Due to seeds, and to chance, because examples are finitely many."""
    freedom: float
    """Degrees of freedom of the t distribution."""
    chance: float
    """The part of the variance that the choice of examples explains."""


def difference(
    first: Scores, second: Scores, *, same_seeds: bool, over: Over = "examples", seed: int = 0
) -> Difference:
    """The mean score of the first runs minus the mean score of the second runs.

    The runs of an architecture differ in their seed. With `same_seeds`, run i of both architectures
    has the same seed. If both architectures have a single run, the interval is over the resampled
    units, which `over` names, and does not cover other seeds. If only one architecture has a single
    run, its variance between seeds is assumed to equal that of the other architecture.
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
    # The seed part already contains the chance variation of single runs, so the example part is
    # scaled down by that share.
    remaining = 1 - noise.chance / max(by_examples.var(), np.finfo(float).tiny)
    example_part = np.tile(np.sqrt(max(0.0, remaining)) * (by_examples - value), SEED_DRAWS)
    generator = np.random.default_rng([seed, SEED_DRAWS])
    seed_part = generator.standard_t(noise.freedom, len(example_part)) * np.sqrt(noise.variance)
    together = value + example_part + seed_part
    return judged(estimate(value, together, over="seeds and examples"))


def _noise(scores: Scores) -> _SeedNoise | None:
    """The noise of the mean of some runs; None for a single run."""
    size = len(scores.points)
    if size < 2:
        return None
    chance = np.nanmean((scores.replicates - scores.points).var(axis=1, ddof=1))
    return _SeedNoise(scores.points.var(ddof=1) / size, size - 1, float(chance) / size)


def _noise_of_two(first: Scores, second: Scores) -> _SeedNoise | None:
    """The noise of the difference of two means, whose runs may vary unequally (Welch)."""
    first_noise, second_noise = _noise(first), _noise(second)
    if first_noise is None and second_noise is None:
        return None
    if first_noise is None or second_noise is None:
        known, size = (
            (first, len(first.points)) if second_noise is None else (second, len(second.points))
        )
        noise = _noise(known)
        assert noise is not None
        return _SeedNoise(noise.variance * (1 + size), noise.freedom, noise.chance * (1 + size))
    variance = first_noise.variance + second_noise.variance
    parts = (
        first_noise.variance**2 / first_noise.freedom
        + second_noise.variance**2 / second_noise.freedom
    )
    freedom = variance**2 / parts if parts else first_noise.freedom + second_noise.freedom
    return _SeedNoise(variance, freedom, first_noise.chance + second_noise.chance)
