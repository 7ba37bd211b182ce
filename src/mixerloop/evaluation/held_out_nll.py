"""`evaluate_nll`: the held-out NLL of a subject, by document, position and pass."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from mixerloop.config import Documents
from mixerloop.data.held_out import HeldOut
from mixerloop.data.prepared import Prepared
from mixerloop.evaluation.looped_scorer import scorer_of
from mixerloop.evaluation.nll import measure, summarise
from mixerloop.evaluation.nll_result import FEW_DOCUMENTS, NllFigures, NllResult, nll_details
from mixerloop.ops.caller_modes import torch_defaults
from mixerloop.parsing import checked, one_of
from mixerloop.schedule import first_passes, num_passes_of
from mixerloop.subject import Subject

Progress = Callable[[str, int, int], None]
"""Called with the name of the measured part, the number of scored tokens, and the total."""


@checked
@torch_defaults()
def evaluate_nll(
    subject: Subject,
    *,
    data: Path | str | None = None,
    context: int | None = None,
    passes: tuple[int, ...] = (),
    documents: Documents = "all",
    progress: Progress | None = None,
) -> NllResult:
    """Score every held-out token but the first, and save the result.

    `data` and `context` default to those of the subject's run. For each number in `passes` the
    model is also measured with every loop stopped after that number of passes. `documents` scores
    only the documents for tuning, or only the others, so that a setting is not chosen by the
    documents that a result reports.
    """
    one_of(Documents, documents, "documents")
    if context is not None and context < 1:
        raise ValueError(f"context must be at least 1, got {context}")
    most = num_passes_of(subject.schedule)
    for number in passes:
        if not 1 <= number <= most:
            raise ValueError(f"passes {number}: this schedule makes 1 to {most}")
    subject.check_can_save(NllResult)
    prepared = subject.open_data(data)
    held_out = _held_out(subject, prepared, context).only(documents)

    def part(name: str) -> Callable[[int, int], None] | None:
        return None if progress is None else partial(progress, name)

    sums = measure(scorer_of(subject), held_out, progress=part("all passes"))
    by_passes = {}
    for number in passes:
        scorer = scorer_of(subject, schedule=first_passes(subject.schedule, number))
        stopped_sums = measure(scorer, held_out, progress=part(f"{number} passes"))
        by_passes[number] = summarise(stopped_sums, held_out)
    figures = summarise(sums, held_out)
    result = NllResult(
        **subject.heading(),
        **vars(figures),
        context=held_out.context,
        scored=documents,
        warnings=_warnings(figures),
        by_passes=by_passes,
        provenance=subject.provenance(data=prepared.fingerprint),
    )
    nats, tokens = sums.nats.sum(axis=1), sums.tokens.sum(axis=1)
    details = nll_details(held_out.document_numbers(), nats, tokens, held_out.text_bytes)
    subject.save(result, details=details)
    return result


def _held_out(subject: Subject, data: Prepared, context: int | None) -> HeldOut:
    if context is None and data.context is None:
        context = None if subject.config.data is None else subject.config.data.context
        if context is None:
            raise ValueError("this run has no context of its own; give one with --context")
    return data.held_out(context)


def _warnings(nll: NllFigures) -> tuple[str, ...]:
    if nll.documents >= FEW_DOCUMENTS:
        return ()
    if nll.documents == 1:
        return ("a single held-out document gives no interval",)
    return (f"the intervals come from {nll.documents} documents; do not trust them far",)
