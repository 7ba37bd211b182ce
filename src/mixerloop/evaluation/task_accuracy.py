"""Accuracy on a synthetic task: the share of right answers and of right guesses by group."""

from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mixerloop.data.prepared import Prepared
from mixerloop.data.tasks.task import NUM_SEQUENCES as SEQUENCES_OF_SPLIT
from mixerloop.data.tasks.task import Task
from mixerloop.evaluation.task_result import GroupAccuracy, TaskResult, sequence_details
from mixerloop.intervals import bootstrap_ratio
from mixerloop.ops.caller_modes import torch_defaults
from mixerloop.ops.precision import check_finite, compute_in
from mixerloop.parsing import checked
from mixerloop.subject import Subject

BATCH = 256
CPU = torch.device("cpu")
NUM_SEQUENCES = SEQUENCES_OF_SPLIT["held_out"]
"""The number of held-out sequences of a task."""


@runtime_checkable
class LogitsAt(Protocol):
    """A model that computes logits at given positions only."""

    def __call__(self, tokens: Tensor, *, positions: Tensor) -> Tensor:
        """Return the logits [batch, positions, vocab] of the token after each position."""
        ...


class TaskCounts(NamedTuple):
    """The number of questions and of right answers of each sequence, by group."""

    groups: tuple[int, ...]
    right: Int[np.ndarray, "sequences groups"]
    questions: Int[np.ndarray, "sequences groups"]
    guess: Float[np.ndarray, " groups"]
    """The share of right guesses; see `Task.guesses`."""


@checked
@torch_defaults()
def evaluate_task(
    subject: Subject, *, data: Path | str | None = None, sequences: int = NUM_SEQUENCES
) -> TaskResult:
    """Answer the questions of the first held-out sequences of a task, and save the result.

    `data` is a prepared folder of a synthetic task; the default is the folder the subject was
    trained on. As many sequences of `Task.longer` are answered, too. Comparisons use the held-out
    sequences only.
    """
    subject.check_can_save(TaskResult)
    prepared = subject.open_data(data)
    if prepared.task is None:
        raise ValueError(f"{prepared.folder}: not a folder of a synthetic task")
    counts = count_answers(subject, prepared, sequences=sequences)
    result = TaskResult(
        **subject.heading(),
        task=prepared.task.name,
        group_name=prepared.task.group_name,
        accuracy_by_group=tuple(summarise(counts)),
        longer_accuracy_by_group=_longer_accuracy(subject, prepared.task, sequences=sequences),
        provenance=subject.provenance(data=prepared.fingerprint),
    )
    subject.save(result, details=sequence_details(counts.right, counts.questions))
    return result


def count_answers(subject: Subject, prepared: Prepared, *, sequences: int) -> TaskCounts:
    """Count a subject's right answers in the first held-out sequences of a synthetic task."""
    if sequences < 2:
        raise ValueError(f"sequences must be at least 2, got {sequences}")
    assert prepared.task is not None
    return _count_answers(subject, prepared.task, sequences=sequences)


def _longer_accuracy(subject: Subject, task: Task, *, sequences: int) -> tuple[GroupAccuracy, ...]:
    longer = task.longer()
    if longer is None:
        return ()
    return tuple(summarise(_count_answers(subject, longer, sequences=sequences)))


def _count_answers(subject: Subject, task: Task, *, sequences: int) -> TaskCounts:
    logits_at = partial(subject.model, schedule=subject.schedule)
    with compute_in(subject.compute_dtype, subject.device.type):
        return task_counts(logits_at, task, num_sequences=sequences, device=subject.device)


def task_accuracy(
    logits_at: LogitsAt, task: Task, *, num_sequences: int, device: torch.device = CPU
) -> list[GroupAccuracy]:
    """The accuracy of each group over the first sequences; intervals resample sequences."""
    return summarise(task_counts(logits_at, task, num_sequences=num_sequences, device=device))


def summarise(counts: TaskCounts) -> list[GroupAccuracy]:
    """Turn the counts of sequences into accuracies with intervals."""
    return [
        GroupAccuracy(
            group=group,
            questions=int(counts.questions[:, index].sum()),
            accuracy=bootstrap_ratio(
                counts.right[:, index], counts.questions[:, index], over="sequences"
            ),
            guess=float(counts.guess[index]),
        )
        for index, group in enumerate(counts.groups)
    ]


@torch.no_grad()
def task_counts(
    logits_at: LogitsAt, task: Task, *, num_sequences: int, device: torch.device = CPU
) -> TaskCounts:
    """Count right answers, right guesses and questions in the first sequences of a task."""
    indices = np.arange(min(num_sequences, task.num_windows))
    tokens, groups = task.sequences(indices)
    answers = tokens[:, task.answer_positions()]
    parts = np.split(tokens, range(BATCH, len(tokens), BATCH))
    right = (
        np.concatenate([_model_answers(logits_at, task, part, device) for part in parts]) == answers
    )
    guessed = task.guesses(tokens) == answers
    by_group = [groups == group for group in task.groups]
    for group, in_group in zip(task.groups, by_group, strict=True):
        if not in_group.any():
            raise ValueError(
                f"no question of {group} {task.group_name} in {len(indices)} sequences; take more"
            )
    return TaskCounts(
        groups=task.groups,
        right=np.stack([(right & in_group).sum(axis=1) for in_group in by_group], axis=1),
        questions=np.stack([in_group.sum(axis=1) for in_group in by_group], axis=1),
        guess=np.array([guessed[in_group].mean() for in_group in by_group]),
    )


def _model_answers(
    logits_at: LogitsAt, task: Task, tokens: np.ndarray, device: torch.device
) -> np.ndarray:
    """The most likely answer to each question, given the right answers to earlier questions."""
    positions = torch.from_numpy(task.answer_positions() - 1).to(device)
    inputs = torch.from_numpy(tokens[:, :-1]).to(device)
    logits = logits_at(inputs, positions=positions)
    check_finite(logits, what="logits")
    return logits[..., : task.num_answers].argmax(-1).cpu().numpy()
