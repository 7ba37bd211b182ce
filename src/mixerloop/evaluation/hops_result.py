"""Accuracy on hops as a result, and its sequences as units of a comparison."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from mixerloop.evaluation.units import RatioUnits, detail_lines, finite
from mixerloop.measures import MEASURES
from mixerloop.parsing import one_line
from mixerloop.results import Estimate, Result


@dataclass(frozen=True, kw_only=True)
class HopsAccuracy:
    """The share of right answers to questions of some number of hops."""

    hops: int
    questions: int
    accuracy: Estimate
    guess: float
    """The accuracy without following any pair; see `hops_accuracy.guesses`."""


@dataclass(frozen=True, kw_only=True)
class HopsResult(Result):
    """The accuracy of one subject for each number of hops."""

    accuracy_by_hop: tuple[HopsAccuracy, ...]


def sequence_units(
    right: Int[np.ndarray, " sequences"],
    questions: Int[np.ndarray, " sequences"],
    *,
    data: str | None,
    compute_dtype: str | None,
) -> RatioUnits:
    """Units of an accuracy on some data."""
    settings = {"data": data, "compute_dtype": compute_dtype}
    return RatioUnits(settings, "hops", "sequences", right, questions)


def hops_details(
    right: Int[np.ndarray, "sequences hops"], questions: Int[np.ndarray, "sequences hops"]
) -> str:
    """The content of hops.jsonl: a line for each sequence, with counts by number of hops."""
    lines = [
        json.dumps({"sequence": number, "right": of_sequence, "questions": asked})
        for number, (of_sequence, asked) in enumerate(
            zip(right.tolist(), questions.tolist(), strict=True)
        )
    ]
    return "\n".join(lines) + "\n"


def read_hops_units(folder: Path, result: HopsResult) -> RatioUnits:
    """The sequences of a result; their questions must add up to the result's own count."""
    right, questions = [], []
    for number, line in detail_lines(MEASURES["hops"].details_in(folder)):
        try:
            right.append(sum(int(finite(count)) for count in line["right"]))
            questions.append(sum(int(finite(count)) for count in line["questions"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"line {number}: {one_line(error)}") from None
    total = sum(part.questions for part in result.accuracy_by_hop)
    if sum(questions) != total or total <= 0 or len(questions) < 2:
        raise ValueError("its sequences are others")
    return sequence_units(
        np.array(right),
        np.array(questions),
        data=result.provenance.data,
        compute_dtype=result.provenance.compute_dtype,
    )
