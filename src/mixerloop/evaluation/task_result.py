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
    """The unit that group numbers count, such as hops."""
    accuracy_by_group: tuple[GroupAccuracy, ...]
    longer_accuracy_by_group: tuple[GroupAccuracy, ...] = ()
    """The accuracy on `Task.longer`; empty for a task that has none."""


def sequence_details(
    right: Int[np.ndarray, "sequences groups"], questions: Int[np.ndarray, "sequences groups"]
) -> str:
    """The content of a detail file: a line for each sequence, with counts by group."""
    lines = [
        json.dumps({"sequence": number, "right": num_right, "questions": num_questions})
        for number, (num_right, num_questions) in enumerate(
            zip(right.tolist(), questions.tolist(), strict=True)
        )
    ]
    return "\n".join(lines) + "\n"


def read_task_units(folder: Path, result: TaskResult) -> RatioUnits:
    """Read the sequences of a result, which a comparison resamples."""
    num_questions = sum(part.questions for part in result.accuracy_by_group)
    return read_sequences(folder, TASK, num_questions, result.provenance)


def read_sequences(
    folder: Path, measure: str, num_questions: int, provenance: Provenance
) -> RatioUnits:
    """Read units from a measure's detail file; their questions must add up to `num_questions`."""
    right, questions = [], []
    for number, line in detail_lines(MEASURES[measure].details_in(folder)):
        try:
            right.append(sum(int(finite(count)) for count in line["right"]))
            questions.append(sum(int(finite(count)) for count in line["questions"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"line {number}: {one_line(error)}") from None
    if sum(questions) != num_questions or num_questions <= 0 or len(questions) < 2:
        raise ValueError("its sequences are not those of the result")
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
    """The units of an accuracy, with the settings that a comparison checks."""
    settings = {"data": data, "compute_dtype": compute_dtype}
    return RatioUnits(settings, measure, "sequences", right, questions)
