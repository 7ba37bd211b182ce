"""Whether two architectures differ by more than the choice of examples and seeds explains.

All runs are scored on the same resampled examples, so the difficulty that an example has for all
runs cancels in a difference. Seeds are not resampled, because two or three seeds are too few to
show how seeds vary. Their variance enters through a t distribution instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from mixerloop.intervals import LEVEL, estimate
from mixerloop.results import Estimate, Over

Verdict = Literal["resolved", "not resolved", "one seed: no verdict", "two seeds: no verdict"]
SEEDS_FOR_VERDICT = 3
"""The number of seeds that both architectures need for a verdict."""
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
    """The first score minus the second, with its uncorrected 95 % interval and a verdict."""

    p_value: float | None
    """The probability of a difference as large between equal architectures; None without a verdict.

    It is two-sided, and over seeds and examples.
    """
    holm_p_value: float | None
    """The same, corrected for all differences that are judged together."""
    verdict: Verdict
    """A difference is resolved if its corrected p-value is below 0.05."""


def judge_together(differences: Sequence[Difference]) -> list[Difference]:
    """Correct p-values by Holm's method, and judge.

    The probability that any difference between equal architectures is called resolved is at most
    5 %, for all these differences together.
    """
    ranked = sorted(
        (difference.p_value, index)
        for index, difference in enumerate(differences)
        if difference.p_value is not None
    )
    judged = list(differences)
    corrected = 0.0
    for rank, (p_value, index) in enumerate(ranked):
        corrected = max(corrected, min(1.0, (len(ranked) - rank) * p_value))
        judged[index] = replace(
            judged[index],
            holm_p_value=corrected,
            verdict="resolved" if corrected < 1 - LEVEL else "not resolved",
        )
    return judged


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
    run, its variance between seeds is assumed to equal that of the other architecture. With fewer
    than three runs of an architecture there is no verdict: how seeds vary is hardly known then.
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
        return _judged(estimate(value, by_examples, over=over), fewest=1)
    # The seed part already contains the chance variation of single runs, so the example part is
    # scaled down by that share.
    remaining = 1 - noise.chance / max(by_examples.var(), np.finfo(float).tiny)
    example_part = np.tile(np.sqrt(max(0.0, remaining)) * (by_examples - value), SEED_DRAWS)
    generator = np.random.default_rng([seed, SEED_DRAWS])
    seed_part = generator.standard_t(noise.freedom, len(example_part)) * np.sqrt(noise.variance)
    together = value + example_part + seed_part
    return _judged(
        estimate(value, together, over="seeds and examples"),
        fewest=min(len(first.points), len(second.points)),
        p_value=_p_value(together),
    )


def _judged(found: Estimate, *, fewest: int, p_value: float | None = None) -> Difference:
    """A difference that is judged alone; `fewest` is the smaller number of seeds."""
    has_verdict = fewest >= SEEDS_FOR_VERDICT
    difference = Difference(
        **vars(found),
        p_value=p_value if has_verdict else None,
        holm_p_value=None,
        verdict="one seed: no verdict" if fewest == 1 else "two seeds: no verdict",
    )
    return judge_together([difference])[0]


def _p_value(replicates: Float[np.ndarray, " resamples"]) -> float:
    """Twice the share of resampled differences on the other side of zero."""
    tail = min((replicates <= 0).sum(), (replicates >= 0).sum())
    return float(min(1.0, 2 * (tail + 1) / (len(replicates) + 1)))


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
