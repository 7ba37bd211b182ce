"""The result of a comparison: architectures, their differences, and a verdict on each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mixerloop.evaluation.difference import Difference, judge_together
from mixerloop.results import Provenance


@dataclass(frozen=True, kw_only=True)
class Arm:
    """An architecture: runs that differ in their seed and in nothing else."""

    name: str
    runs: tuple[str, ...]
    """Paths of the runs, in the order of their seeds."""
    seeds: tuple[int | None, ...]
    scores: dict[str, float]
    """The mean over the runs of each score, by the name of the score."""


@dataclass(frozen=True, kw_only=True)
class TaskPart:
    """The part of one task in a difference of the mean centered score.

    Scores are centered by version 1 of the baselines, which the paper uses.
    """

    difference: float
    """The difference of the centered scores of this task."""
    contribution: float
    """The contribution to the difference of the mean: `difference` / number of tasks."""
    share: float | None
    """The contribution divided by the difference of the mean; None if that difference is zero."""
    below_majority: bool
    """Whether neither architecture is better than always giving the most frequent answer."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The differences between two architectures, first minus second."""

    first: str
    second: str
    seeds: str
    """The number of seeds, and what the intervals are over, in words."""
    measures: dict[str, Difference]
    """Differences by the name of the score."""
    tasks: dict[str, TaskPart]
    """Tasks of CORE; empty if CORE was not compared."""
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several architectures and the differences of every pair of them."""

    arms: tuple[Arm, ...]
    pairs: tuple[Pair, ...]
    warnings: tuple[str, ...]
    """Warnings that apply to every pair."""
    provenance: Provenance


def judged_together(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons, their verdicts corrected for all differences in all of them."""
    differences = [
        difference
        for comparison in comparisons
        for pair in comparison.pairs
        for difference in pair.measures.values()
    ]
    judged = iter(judge_together(differences))
    return [
        replace(
            comparison,
            pairs=tuple(
                replace(pair, measures={name: next(judged) for name in pair.measures})
                for pair in comparison.pairs
            ),
        )
        for comparison in comparisons
    ]
