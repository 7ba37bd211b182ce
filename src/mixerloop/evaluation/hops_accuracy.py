"""`evaluate_hops`: the accuracy of a subject on hops, by the number of hops of a question."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mixerloop.data.prepared import open_prepared
from mixerloop.data.tasks.hops import Hops
from mixerloop.evaluation.kept_results import write_hops
from mixerloop.evaluation.task_accuracy import NUM_SEQUENCES, count_answers, summarise
from mixerloop.intervals import Estimate
from mixerloop.subject import Heading, Subject


@dataclass(frozen=True, kw_only=True)
class HopsAccuracy:
    """The share of right answers to questions of some number of hops."""

    hops: int
    questions: int
    accuracy: Estimate
    guess: float
    """What is right without following anything; see `Hops.guesses`."""


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
    prepared = open_prepared(subject.data(data))
    if not isinstance(prepared.task, Hops):
        raise ValueError(f"{prepared.folder}: not a folder of hops; give one with --data")
    counts = count_answers(subject, prepared, sequences=sequences)
    result = HopsResult(
        heading=subject.heading(),
        accuracy_by_hop=tuple(
            HopsAccuracy(
                hops=part.group,
                questions=part.questions,
                accuracy=part.accuracy,
                guess=part.guess,
            )
            for part in summarise(counts)
        ),
        provenance=subject.provenance(data=prepared.fingerprint),
    )
    if subject.results is not None:
        write_hops(subject.results, result.to_json(), counts.right, counts.questions)
    return result
