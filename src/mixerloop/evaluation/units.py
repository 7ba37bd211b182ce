"""Units: the documents, sequences or examples that a comparison resamples.

The score of each unit is read from the details of a result. Runs are compared on the same units.
Each measure therefore defines how to read the units of a run, whether two runs have the same units,
and how to compute scores from the units of several runs.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from jaxtyping import Float, Int

from mixerloop.evaluation.comparison_result import TaskPart
from mixerloop.evaluation.difference import Scores
from mixerloop.intervals import resampled_ratios
from mixerloop.parsing import one_line
from mixerloop.results import Result, Scalar

R_contra = TypeVar("R_contra", bound=Result, contravariant=True)
U = TypeVar("U", bound="Units[Any]")


@dataclass(frozen=True)
class Units(ABC, Generic[U]):
    """The units of one run; a subclass names itself as `U`, the type of other runs' units."""

    settings: Mapping[str, Scalar]
    """Settings of the measurement that two runs must share to be compared."""

    @classmethod
    @abstractmethod
    def scores(cls, runs: Sequence[U], *, seed: int) -> dict[str, Scores]:
        """The scores of several runs, by name; all runs are resampled in the same way."""

    def mismatch(self, first: U) -> str | None:
        """Why the units differ from those of the first run; the message ends before its path."""
        return None

    def not_compared_because(self) -> str | None:
        """Why these units give no comparison, and what does; None if they do."""
        return None

    def warnings(self) -> Iterator[str]:
        """Warnings about comparisons on these units."""
        return iter(())

    @classmethod
    def task_parts(
        cls, runs: Sequence[U], first: Sequence[int], second: Sequence[int]
    ) -> dict[str, TaskPart]:
        """Each task's part in the difference of two architectures, whose runs are given by index.

        Empty for a measure without tasks.
        """
        return {}


@dataclass(frozen=True)
class RatioUnits(Units["RatioUnits"]):
    """Units of a score that is a sum over a sum: nats per token, right answers per question."""

    score: str
    """The name of the score."""
    unit: str
    """The plural noun for the units, used in messages."""
    numerators: Float[np.ndarray, " units"] | Int[np.ndarray, " units"]
    denominators: Int[np.ndarray, " units"]

    @classmethod
    def scores(cls, runs: Sequence["RatioUnits"], *, seed: int) -> dict[str, Scores]:
        """The ratio of the sums of every run, for all units and for resampled units."""
        numerators = np.stack([units.numerators for units in runs], axis=1)
        denominators = np.stack([units.denominators for units in runs], axis=1)
        points = numerators.sum(axis=0) / denominators.sum(axis=0)
        drawn = resampled_ratios(numerators, denominators, seed=seed)
        return {runs[0].score: Scores(points, drawn)}

    def mismatch(self, first: "RatioUnits") -> str | None:
        """Units match if their denominators are equal."""
        if np.array_equal(self.denominators, first.denominators):
            return None
        return f"its {self.unit} are not those of"


class ReadUnits(Protocol[R_contra]):
    """Reads the units of a result; raises `ValueError` if the details do not fit the result."""

    def __call__(self, folder: Path, result: R_contra) -> Units[Any]:
        """`folder` holds the result file and its details."""
        ...


def detail_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Parse every line of a detail file as JSON; lines are numbered from 1."""
    if not path.is_file():
        raise ValueError("missing")
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            yield number, json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {one_line(error)}") from None


def finite(value: Any) -> float:
    """Check that a value of a detail file is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no number")
    return float(value)
