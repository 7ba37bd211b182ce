"""How often a model answers right, by the number of hops the question takes."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mixerloop.config import check_fits
from mixerloop.data.batches import fingerprint, hops_settings
from mixerloop.data.hops import Hops
from mixerloop.evaluation.kept_results import HOPS
from mixerloop.intervals import Estimate, bootstrap_ratio
from mixerloop.ops.precision import compute_in
from mixerloop.subject import Heading, Subject

BATCH = 256
CPU = torch.device("cpu")


NUM_SEQUENCES = 4096
"""The held-out sequences of a folder of hops."""


class LogitsAt(Protocol):
    """What is asked of a model."""

    def __call__(self, tokens: Tensor, *, positions: Tensor) -> Tensor:
        """Logits [batch, positions, vocab] after each of these positions."""
        ...


@dataclass(frozen=True, kw_only=True)
class HopsAccuracy:
    """The share of right answers to questions of some number of hops."""

    hops: int
    questions: int
    accuracy: Estimate
    guess: float
    """What is right without following anything; see `guesses`."""


@dataclass(frozen=True, kw_only=True)
class HopsResult:
    """The accuracy of one subject for each number of hops."""

    heading: Heading
    accuracy_by_hop: tuple[HopsAccuracy, ...]
    provenance: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The content of hops.json."""
        return {
            **asdict(self.heading),
            "accuracy_by_hop": [
                asdict(part) | {"accuracy": part.accuracy._asdict()}
                for part in self.accuracy_by_hop
            ],
            "provenance": self.provenance,
        }


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
        accuracy = hops_accuracy(logits_at, hops, num_sequences=sequences, device=subject.device)
    result = HopsResult(
        heading=subject.heading(),
        accuracy_by_hop=tuple(accuracy),
        provenance=subject.provenance(data=fingerprint(folder)),
    )
    subject.keep(HOPS, result.to_json())
    return result


@torch.no_grad()
def hops_accuracy(
    logits_at: LogitsAt, hops: Hops, *, num_sequences: int, device: torch.device = CPU
) -> list[HopsAccuracy]:
    """For each number of hops, over the first sequences of a split, resampled by sequence."""
    indices = np.arange(min(num_sequences, hops.num_windows))
    sequences, asked_hops = hops.sequences(indices)
    answers = sequences[:, hops.answer_positions()]
    parts = np.split(sequences, range(BATCH, len(sequences), BATCH))
    right = np.concatenate([answered(logits_at, hops, part, device) for part in parts]) == answers
    guessed = guesses(hops, sequences) == answers
    results = []
    for number in range(1, hops.settings.max_hops + 1):
        asked = asked_hops == number
        questions = asked.sum(axis=1)
        if not questions.any():
            raise ValueError(f"no question of {number} hops in {len(indices)} sequences; take more")
        results.append(
            HopsAccuracy(
                hops=number,
                questions=int(asked.sum()),
                accuracy=bootstrap_ratio((right & asked).sum(axis=1), questions),
                guess=float(guessed[asked].mean()),
            )
        )
    return results


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
