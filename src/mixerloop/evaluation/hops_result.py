"""Accuracy on hops as a result, and its sequences as units of a comparison."""

from dataclasses import dataclass
from pathlib import Path

from mixerloop.evaluation.task_result import read_sequences
from mixerloop.evaluation.units import RatioUnits
from mixerloop.results import Estimate, Result

HOPS = "hops"


@dataclass(frozen=True, kw_only=True)
class HopsAccuracy:
    """The share of right answers to questions with a given number of hops."""

    hops: int
    questions: int
    accuracy: Estimate
    guess: float
    """The accuracy without following any pair; see `Hops.guesses`."""


@dataclass(frozen=True, kw_only=True)
class HopsResult(Result):
    """The accuracy of one subject for each number of hops."""

    accuracy_by_hop: tuple[HopsAccuracy, ...]


def read_hops_units(folder: Path, result: HopsResult) -> RatioUnits:
    """Read the sequences of a result, which a comparison resamples."""
    num_questions = sum(part.questions for part in result.accuracy_by_hop)
    return read_sequences(folder, HOPS, num_questions, result.provenance)
