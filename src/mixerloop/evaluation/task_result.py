"""Accuracy on a synthetic task as a result, and its sequences as units of a comparison."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from mixerloop.evaluation.units import RatioUnits, detail_lines, finite
from mixerloop.measures import MEASURES
from mixerloop.parsing import one_line
from mixerloop.results import Estimate, Provenance, Result

TASK = "task"


@dataclass(frozen=True, kw_only=True)
class GroupAccuracy:
    """The share of right answers to the questions of one group."""

    group: int
    questions: int
    accuracy: Estimate
    guess: float
    """The share of right guesses; see `Task.guesses`."""


@dataclass(frozen=True, kw_only=True)
class TaskResult(Result):
    """The accuracy of one subject on a synthetic task."""

    task: str
    group_name: str
    """What the number of a group counts."""
    accuracy_by_group: tuple[GroupAccuracy, ...]


def sequence_details(
    right: Int[np.ndarray, "sequences groups"], questions: Int[np.ndarray, "sequences groups"]
) -> str:
    """The content of a detail file: a line for each sequence, with counts by group."""
    lines = [
        json.dumps({"sequence": number, "right": of_sequence, "questions": asked})
        for number, (of_sequence, asked) in enumerate(
            zip(right.tolist(), questions.tolist(), strict=True)
        )
    ]
    return "\n".join(lines) + "\n"


def read_task_units(folder: Path, result: TaskResult) -> RatioUnits:
    """The sequences of a result, for a comparison."""
    num_questions = sum(part.questions for part in result.accuracy_by_group)
    return read_sequences(folder, TASK, num_questions, result.provenance)


def read_sequences(
    folder: Path, measure: str, num_questions: int, provenance: Provenance
) -> RatioUnits:
    """Units from the detail file of a measure; their questions must add up to the result's."""
    right, questions = [], []
    for number, line in detail_lines(MEASURES[measure].details_in(folder)):
        try:
            right.append(sum(int(finite(count)) for count in line["right"]))
            questions.append(sum(int(finite(count)) for count in line["questions"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"line {number}: {one_line(error)}") from None
    if sum(questions) != num_questions or num_questions <= 0 or len(questions) < 2:
        raise ValueError("its sequences are others")
    return sequence_units(
        measure,
        np.array(right),
        np.array(questions),
        data=provenance.data,
        compute_dtype=provenance.compute_dtype,
    )


def sequence_units(
    measure: str,
    right: Int[np.ndarray, " sequences"],
    questions: Int[np.ndarray, " sequences"],
    *,
    data: str | None,
    compute_dtype: str | None,
) -> RatioUnits:
    """Units of an accuracy on some data."""
    settings = {"data": data, "compute_dtype": compute_dtype}
    return RatioUnits(settings, measure, "sequences", right, questions)
