"""The result of a comparison: architectures, their differences, and a verdict on each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mixerloop.evaluation.difference import Difference, judge_together
from mixerloop.results import Provenance

ONE_TASK_IS_MOST = 0.5
"""A warning names a task whose share of a difference is above this."""
NAMED_TASKS = 5
"""Tasks that a warning lists by name."""


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


def task_warnings(tasks: Mapping[str, TaskPart]) -> Iterator[str]:
    """Warn of a task that makes most of a difference, and of tasks where guessing does as well."""
    for label, part in tasks.items():
        if part.share is not None and part.share > ONE_TASK_IS_MOST and len(tasks) > 1:
            total = sum(task.contribution for task in tasks.values())
            also = ", where both are below the most frequent answer" * part.below_majority
            yield (
                f"{label} alone makes {100 * part.contribution:+.2f} of the difference of "
                f"{100 * total:+.2f}{also}"
            )
    if below := [label for label, part in tasks.items() if part.below_majority]:
        some = ", ".join(below[:NAMED_TASKS]) + ", ..." * (len(below) > NAMED_TASKS)
        yield (
            f"both are no better than always the most frequent answer on {len(below)} of "
            f"{len(tasks)} tasks: {some}"
        )
