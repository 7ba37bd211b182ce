"""The result of a comparison: architectures, their differences, and a verdict on each."""

from dataclasses import dataclass

from mixerloop.evaluation.difference import Difference
from mixerloop.results import Provenance


@dataclass(frozen=True, kw_only=True)
class Arm:
    """An architecture: runs that differ in their seed and in nothing else."""

    name: str
    runs: tuple[str, ...]
    """Their paths, in the order of their seeds."""
    seeds: tuple[int | None, ...]
    scores: dict[str, float]
    """By name, the mean over the runs."""


@dataclass(frozen=True, kw_only=True)
class TaskPart:
    """A task's part in a difference of the mean centered score, by the paper's baselines."""

    difference: float
    """Of the centered scores."""
    contribution: float
    """To the difference of the mean."""
    share: float | None
    """Of the difference of the mean; None where that difference is zero."""
    below_majority: bool
    """Whether always giving the most frequent answer does as well as both, or better."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One architecture against another, first minus second."""

    first: str
    second: str
    seeds: str
    """What the intervals are over, in words."""
    measures: dict[str, Difference]
    """By name of the score."""
    tasks: dict[str, TaskPart]
    """Of CORE, where it was compared."""
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All pairs of some architectures."""

    arms: tuple[Arm, ...]
    pairs: tuple[Pair, ...]
    warnings: tuple[str, ...]
    """Of all pairs alike."""
    provenance: Provenance
