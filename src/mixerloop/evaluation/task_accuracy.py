"""Accuracy on a synthetic task: the share of right answers in each group, beside a guess."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mixerloop.config import check_fits
from mixerloop.data.prepared import Prepared, open_prepared
from mixerloop.data.tasks.task import NUM_SEQUENCES as SEQUENCES_OF_SPLIT
from mixerloop.data.tasks.task import Task
from mixerloop.intervals import Estimate, bootstrap_ratio
from mixerloop.ops.precision import compute_in
from mixerloop.subject import Heading, Subject

BATCH = 256
CPU = torch.device("cpu")
TASK = "task.json"
NUM_SEQUENCES = SEQUENCES_OF_SPLIT["held_out"]
"""The held-out sequences of a task."""


@runtime_checkable
class LogitsAt(Protocol):
    """A model that reads out at some positions only."""

    def __call__(self, tokens: Tensor, *, positions: Tensor) -> Tensor:
        """Logits [batch, positions, vocab] after each of these positions."""
        ...


class TaskCounts(NamedTuple):
    """Answers of each sequence, by group."""

    groups: tuple[int, ...]
    right: Int[np.ndarray, "sequences groups"]
    questions: Int[np.ndarray, "sequences groups"]
    guess: Float[np.ndarray, " groups"]
    """The share of right guesses; see `Task.guesses`."""


@dataclass(frozen=True, kw_only=True)
class GroupAccuracy:
    """The share of right answers to the questions of one group."""

    group: int
    questions: int
    accuracy: Estimate
    guess: float
    """The share of right guesses; see `Task.guesses`."""


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The accuracy of one subject on a synthetic task."""

    heading: Heading
    task: str
    group_name: str
    """What the number of a group counts."""
    accuracy_by_group: tuple[GroupAccuracy, ...]
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The content of task.json."""
        return {
            **asdict(self.heading),
            "task": self.task,
            "group_name": self.group_name,
            "accuracy_by_group": [
                asdict(part) | {"accuracy": part.accuracy._asdict()}
                for part in self.accuracy_by_group
            ],
            "provenance": self.provenance,
        }


def evaluate_task(
    subject: Subject, *, data: Path | str | None = None, sequences: int = NUM_SEQUENCES
) -> TaskResult:
    """Ask the first held-out sequences of a task, and keep the result with the subject's results.

    `data` is a folder of a synthetic task; the folder the subject was trained on by default.
    """
    prepared = open_prepared(subject.data(data))
    if prepared.task is None:
        raise ValueError(f"{prepared.folder}: not a folder of a synthetic task")
    counts = count_answers(subject, prepared, sequences=sequences)
    result = TaskResult(
        heading=subject.heading(),
        task=prepared.task.name,
        group_name=prepared.task.group_name,
        accuracy_by_group=tuple(summarise(counts)),
        provenance=subject.provenance(data=prepared.fingerprint),
    )
    subject.keep(TASK, result.to_json())
    return result


def count_answers(subject: Subject, prepared: Prepared, *, sequences: int) -> TaskCounts:
    """Ask a subject the first held-out sequences of a folder of a synthetic task."""
    if sequences < 2:
        raise ValueError(f"sequences must be at least 2, got {sequences}")
    assert prepared.task is not None
    check_fits(prepared.folder, prepared.vocab_size, subject.config.model.vocab_size)
    logits_at = partial(subject.model, schedule=subject.schedule)
    with compute_in(subject.compute_dtype, subject.device.type):
        return task_counts(logits_at, prepared.task, num_sequences=sequences, device=subject.device)


def task_accuracy(
    logits_at: LogitsAt, task: Task, *, num_sequences: int, device: torch.device = CPU
) -> list[GroupAccuracy]:
    """For each group, over the first sequences of a split, resampled by sequence."""
    return summarise(task_counts(logits_at, task, num_sequences=num_sequences, device=device))


def summarise(counts: TaskCounts) -> list[GroupAccuracy]:
    """Counts of sequences to accuracies with intervals."""
    return [
        GroupAccuracy(
            group=group,
            questions=int(counts.questions[:, index].sum()),
            accuracy=bootstrap_ratio(counts.right[:, index], counts.questions[:, index]),
            guess=float(counts.guess[index]),
        )
        for index, group in enumerate(counts.groups)
    ]


@torch.no_grad()
def task_counts(
    logits_at: LogitsAt, task: Task, *, num_sequences: int, device: torch.device = CPU
) -> TaskCounts:
    """Ask the first sequences of a split."""
    indices = np.arange(min(num_sequences, task.num_windows))
    tokens, groups = task.sequences(indices)
    answers = tokens[:, task.answer_positions()]
    parts = np.split(tokens, range(BATCH, len(tokens), BATCH))
    right = np.concatenate([_answered(logits_at, task, part, device) for part in parts]) == answers
    guessed = task.guesses(tokens) == answers
    by_group = [groups == group for group in task.groups]
    for group, asked in zip(task.groups, by_group, strict=True):
        if not asked.any():
            raise ValueError(
                f"no question of {group} {task.group_name} in {len(indices)} sequences; take more"
            )
    return TaskCounts(
        groups=task.groups,
        right=np.stack([(right & asked).sum(axis=1) for asked in by_group], axis=1),
        questions=np.stack([asked.sum(axis=1) for asked in by_group], axis=1),
        guess=np.array([guessed[asked].mean() for asked in by_group]),
    )


def _answered(
    logits_at: LogitsAt, task: Task, tokens: np.ndarray, device: torch.device
) -> np.ndarray:
    """The answer a model finds most likely at each question, all earlier answers in view."""
    positions = torch.from_numpy(task.answer_positions() - 1).to(device)
    inputs = torch.from_numpy(tokens[:, :-1]).to(device)
    logits = logits_at(inputs, positions=positions)
    if not logits.isfinite().all():
        raise ValueError("the logits are not finite, so nothing is answered; are the weights?")
    return logits[..., : task.num_answers].argmax(-1).cpu().numpy()
