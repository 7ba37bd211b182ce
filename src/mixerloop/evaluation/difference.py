"""Whether two architectures differ: by more than other examples, or other seeds, would make them.

Every run is scored on the same resampled examples, so what makes an example easy or hard for all
falls out of a difference. Seeds are few, and resampling two or three of them would say far too
little of how seeds vary; they enter by their variance and a t distribution instead.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from mixerloop.evaluation.intervals import estimate

Verdict = Literal["resolved", "not resolved"]
PAIRS_FROM = 4
"""Seeds; fewer pairs leave so few degrees of freedom that pairing widens an interval."""


class Scores(NamedTuple):
    """A score of several runs, and the same on resampled examples."""

    points: Float[np.ndarray, " runs"]
    replicates: Float[np.ndarray, "resamples runs"]

    def of(self, runs: Sequence[int]) -> "Scores":
        """Those of some runs."""
        return Scores(self.points[list(runs)], self.replicates[:, list(runs)])


@dataclass(frozen=True)
class Difference:
    """First minus second, with a 95 % interval."""

    difference: float
    lower: float
    upper: float

    @property
    def verdict(self) -> Verdict:
        """Whether the interval leaves zero out."""
        return "resolved" if self.lower > 0 or self.upper < 0 else "not resolved"

    def to_json(self) -> dict[str, Any]:
        """With its verdict."""
        return asdict(self) | {"verdict": self.verdict}


def difference(first: Scores, second: Scores, *, same_seeds: bool, seed: int = 0) -> Difference:
    """The mean of the first runs minus that of the second.

    Runs of one architecture are its seeds; with `same_seeds` run i of both had the same. Where both
    have one run only, the interval is over examples and says nothing of other seeds.
    """
    value = float(first.points.mean() - second.points.mean())
    by_examples = first.replicates.mean(axis=1) - second.replicates.mean(axis=1)
    if same_seeds and len(first.points) >= PAIRS_FROM:
        pairs = Scores(first.points - second.points, first.replicates - second.replicates)
        groups, weight = [pairs], 1 / len(first.points)
    else:
        groups, weight = [first, second], 1 / len(first.points) + 1 / len(second.points)
    freedom = sum(len(group.points) - 1 for group in groups)
    if freedom == 0:
        return Difference(*estimate(value, by_examples))
    # Runs of one architecture differ by their seeds and, given finitely many examples, by chance.
    # The variance between them holds both, so the chance is taken out of the examples' part.
    between = sum(_summed_squares(group.points[None])[0] for group in groups) / freedom
    chance = sum(_summed_squares(group.replicates - group.points).mean() for group in groups)
    left = 1 - chance / freedom * weight / max(by_examples.var(), np.finfo(float).tiny)
    generator = np.random.default_rng(seed)
    by_seeds = generator.standard_t(freedom, size=len(by_examples)) * np.sqrt(between * weight)
    drawn = value + np.sqrt(max(0.0, left)) * (by_examples - value) + by_seeds
    return Difference(*estimate(value, drawn))


def _summed_squares(values: Float[np.ndarray, "rows runs"]) -> Float[np.ndarray, " rows"]:
    """Of what the runs of a row deviate from their mean."""
    return ((values - values.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
