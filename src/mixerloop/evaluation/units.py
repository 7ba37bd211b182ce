"""Scores unit by unit: what a comparison resamples, read from the details of a result.

A unit is a document, a sequence or an example. Runs are compared on the same units, so each measure
says how to read the units of a run, whether two runs have the same units, and how the units of
several runs become scores.
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
        """By name, the scores of several runs, resampled alike for all."""

    def mismatch(self, first: U) -> str | None:
        """Why units cannot be paired with those of the first run, as words before its path."""
        return None

    def warnings(self) -> Iterator[str]:
        """What limits a comparison on these units."""
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
    """In words, in the plural."""
    numerators: Float[np.ndarray, " units"] | Int[np.ndarray, " units"]
    denominators: Int[np.ndarray, " units"]

    @classmethod
    def scores(cls, runs: Sequence["RatioUnits"], *, seed: int) -> dict[str, Scores]:
        """Sum over sum of every run, and the same in resamples of the units."""
        numerators = np.stack([units.numerators for units in runs], axis=1)
        denominators = np.stack([units.denominators for units in runs], axis=1)
        points = numerators.sum(axis=0) / denominators.sum(axis=0)
        drawn = resampled_ratios(numerators, denominators, seed=seed)
        return {runs[0].score: Scores(points, drawn)}

    def mismatch(self, first: "RatioUnits") -> str | None:
        """Units with other denominators are other units."""
        if np.array_equal(self.denominators, first.denominators):
            return None
        return f"its {self.unit} are not those of"


class ReadUnits(Protocol[R_contra]):
    """Reads the units of a result from its folder; details that do not fit are a `ValueError`."""

    def __call__(self, folder: Path, result: R_contra) -> Units[Any]:
        """`folder` holds the result file and its details."""
        ...


def detail_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """The JSON of every line of a detail file, numbered from 1."""
    if not path.is_file():
        raise ValueError("missing")
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            yield number, json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {one_line(error)}") from None


def finite(value: Any) -> float:
    """A number of a detail file."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no number")
    return float(value)
