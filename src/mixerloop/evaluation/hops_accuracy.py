"""How often a model answers right, by the number of hops the question takes."""

from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mixerloop.config import check_fits
from mixerloop.data.batches import fingerprint, hops_settings
from mixerloop.data.hops import Hops
from mixerloop.evaluation.hops_result import HopsAccuracy, HopsResult, hops_details
from mixerloop.intervals import bootstrap_ratio
from mixerloop.ops.precision import compute_in
from mixerloop.subject import Subject

BATCH = 256
CPU = torch.device("cpu")


NUM_SEQUENCES = 4096
"""The held-out sequences of a folder of hops."""


class LogitsAt(Protocol):
    """What is asked of a model."""

    def __call__(self, tokens: Tensor, *, positions: Tensor) -> Tensor:
        """Logits [batch, positions, vocab] after each of these positions."""
        ...


def evaluate_hops(
    subject: Subject, *, data: Path | str | None = None, sequences: int = NUM_SEQUENCES
) -> HopsResult:
    """Ask the first held-out sequences of hops, and keep the result with the subject's results.

    `data` is a folder of hops; the folder the subject was trained on where it is not given.
    """
    if sequences < 2:
        raise ValueError(f"sequences must be at least 2, got {sequences}")
    folder = subject.data(data)
    settings = hops_settings(folder)
    if settings is None:
        raise ValueError(f"{folder}: not a folder of hops; give one with --data")
    hops = Hops(settings, "held_out")
    check_fits(folder, hops.vocab_size, subject.config.model.vocab_size)
    logits_at = partial(subject.model, schedule=subject.schedule)
    with compute_in(subject.compute_dtype, subject.device.type):
        counts = hops_counts(logits_at, hops, num_sequences=sequences, device=subject.device)
    result = HopsResult(
        **subject.heading(),
        accuracy_by_hop=tuple(summarise(counts)),
        provenance=subject.provenance(data=fingerprint(folder)),
    )
    subject.save(result, details=hops_details(counts.right, counts.questions))
    return result


class HopsCounts(NamedTuple):
    """Answers of each sequence, by number of hops from one on."""

    right: Int[np.ndarray, "sequences hops"]
    questions: Int[np.ndarray, "sequences hops"]
    guess: Float[np.ndarray, " hops"]
    """The share that is right without following anything; see `guesses`."""


def hops_accuracy(
    logits_at: LogitsAt, hops: Hops, *, num_sequences: int, device: torch.device = CPU
) -> list[HopsAccuracy]:
    """For each number of hops, over the first sequences of a split, resampled by sequence."""
    return summarise(hops_counts(logits_at, hops, num_sequences=num_sequences, device=device))


def summarise(counts: HopsCounts) -> list[HopsAccuracy]:
    """Counts of sequences to accuracies with intervals."""
    return [
        HopsAccuracy(
            hops=index + 1,
            questions=int(counts.questions[:, index].sum()),
            accuracy=bootstrap_ratio(
                counts.right[:, index], counts.questions[:, index], over="sequences"
            ),
            guess=float(counts.guess[index]),
        )
        for index in range(counts.questions.shape[1])
    ]


@torch.no_grad()
def hops_counts(
    logits_at: LogitsAt, hops: Hops, *, num_sequences: int, device: torch.device = CPU
) -> HopsCounts:
    """Ask the first sequences of a split."""
    indices = np.arange(min(num_sequences, hops.num_windows))
    sequences, asked_hops = hops.sequences(indices)
    answers = sequences[:, hops.answer_positions()]
    parts = np.split(sequences, range(BATCH, len(sequences), BATCH))
    right = np.concatenate([answered(logits_at, hops, part, device) for part in parts]) == answers
    guessed = guesses(hops, sequences) == answers
    by_hops = [asked_hops == number for number in range(1, hops.settings.max_hops + 1)]
    for number, asked in enumerate(by_hops, start=1):
        if not asked.any():
            raise ValueError(f"no question of {number} hops in {len(indices)} sequences; take more")
    return HopsCounts(
        right=np.stack([(right & asked).sum(axis=1) for asked in by_hops], axis=1),
        questions=np.stack([asked.sum(axis=1) for asked in by_hops], axis=1),
        guess=np.array([guessed[asked].mean() for asked in by_hops]),
    )


def answered(
    logits_at: LogitsAt, hops: Hops, sequences: np.ndarray, device: torch.device
) -> np.ndarray:
    """The node a model finds most likely at each answer, all earlier answers in view."""
    positions = torch.from_numpy(hops.answer_positions() - 1).to(device)
    tokens = torch.from_numpy(sequences[:, :-1]).to(device)
    logits = logits_at(tokens, positions=positions)
    if not logits.isfinite().all():
        raise ValueError("the logits are not finite, so nothing is answered; are the weights?")
    return logits[..., : hops.settings.num_nodes].argmax(-1).cpu().numpy()


def guesses(hops: Hops, sequences: np.ndarray) -> np.ndarray:
    """The best that can be said without a look-up in the list of pairs.

    A question that was asked before in the sequence has its answer there; for any other, the node
    asked about is the most likely end of two hops or more, because permutations have short cycles.
    """
    answer_at = hops.answer_positions()
    said = sequences[:, answer_at - 1].copy()
    questions = sequences[:, answer_at - 2] * hops.vocab_size + sequences[:, answer_at - 1]
    for later in range(len(answer_at)):
        for earlier in range(later):
            again = questions[:, later] == questions[:, earlier]
            said[again, later] = sequences[again, answer_at[earlier]]
    return said
