"""`evaluate_hops`: the accuracy of a subject on hops, by the number of hops of a question."""

from pathlib import Path

from mixerloop.data.tasks.hops import Hops
from mixerloop.evaluation.hops_result import HopsAccuracy, HopsResult
from mixerloop.evaluation.task_accuracy import NUM_SEQUENCES, count_answers, summarise
from mixerloop.evaluation.task_result import sequence_details
from mixerloop.ops.caller_modes import torch_defaults
from mixerloop.parsing import checked
from mixerloop.subject import Subject


@checked
@torch_defaults()
def evaluate_hops(
    subject: Subject, *, data: Path | str | None = None, sequences: int = NUM_SEQUENCES
) -> HopsResult:
    """Answer the questions of the first held-out sequences of hops, and save the result.

    `data` is a prepared folder of hops; the default is the folder the subject was trained on.
    """
    subject.check_can_save(HopsResult)
    prepared = subject.open_data(data)
    if not isinstance(prepared.task, Hops):
        raise ValueError(f"{prepared.folder}: not a folder of hops; give one with --data")
    counts = count_answers(subject, prepared, sequences=sequences)
    result = HopsResult(
        **subject.heading(),
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
    subject.save(result, details=sequence_details(counts.right, counts.questions))
    return result
