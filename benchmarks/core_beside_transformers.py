"""Answer CORE's questions again with `transformers`, and compare every decision.

    mixerloop evaluate core RUN --limit 20 --out FOLDER
    python benchmarks/core_beside_transformers.py RUN --results FOLDER [--examples 10] [--json]

RUN is an imported model. It is exported in the layout of its import and read by `transformers`.
`HuggingFaceScorer` runs every sequence whole, with the run's own tokenizer, on the first examples
of each task in FOLDER. A decision is the chosen option, or whether all tokens are predicted.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from mixerloop.benchmarking.measure import header
from mixerloop.evaluation.core.answer_folder import read_answers
from mixerloop.evaluation.core.answers import Answer
from mixerloop.evaluation.core.asking import answers, asked
from mixerloop.evaluation.core.bundle import find_bundle
from mixerloop.evaluation.core.core_result import CoreResult
from mixerloop.evaluation.hugging_face_scorer import HuggingFaceScorer
from mixerloop.files import json_text
from mixerloop.interop.conversion import export_run
from mixerloop.interop.loading import open_subject
from mixerloop.measures import MEASURES
from mixerloop.notation import notation
from mixerloop.program import run_program
from mixerloop.progress_line import ProgressLine, counting
from mixerloop.provenance import collect_provenance
from mixerloop.result_files import read_result
from mixerloop.text_tables import print_table, table_of


@dataclass(frozen=True, kw_only=True)
class Row:
    """The decisions of both on the first examples of a task."""

    task: str
    examples: int
    differing: int
    """The number of examples with another decision."""
    largest_loss_difference: float | None
    """Nats; the largest difference of the mean loss of a sequence. None if none has a loss."""
    smallest_margin: float | None
    """Nats; the smallest distance between the two best options. None for language modelling."""


def compared(task: str, ours: list[Answer], theirs: list[Answer]) -> Row:
    """Compare the answers to the same examples."""
    pairs = list(zip(ours, theirs, strict=True))
    assert all(a.example == b.example for a, b in pairs)
    losses = [
        abs(x - y)
        for a, b in pairs
        for x, y in zip(a.losses, b.losses, strict=True)
        if x is not None and y is not None
    ]
    margins = []
    for answer in ours:
        scored = sorted(loss for loss in answer.losses if loss is not None)
        if answer.decision is not None and len(scored) > 1:
            margins.append(scored[1] - scored[0])
    return Row(
        task=task,
        examples=len(pairs),
        differing=sum((a.decision, a.right) != (b.decision, b.right) for a, b in pairs),
        largest_loss_difference=max(losses, default=None),
        smallest_margin=min(margins, default=None),
    )


def measured(run: Path, results: Path, bundle: Path | None, examples: int) -> Iterator[Row]:
    """Score the first examples of each answered task with `transformers`."""
    from transformers import AutoModelForCausalLM

    measure = MEASURES["core"]
    result = read_result(results, measure)
    assert isinstance(result, CoreResult)
    settings = result.settings
    subject = open_subject(run, keep=False)
    if subject.fingerprint != settings.checkpoint:
        raise ValueError(f"{results}: holds answers of other weights than {run}")
    opened = find_bundle(bundle)
    if opened.fingerprint() != settings.bundle:
        raise ValueError(f"{results}: holds answers to another bundle than {opened.path}")
    tokenizer = subject.tokenizer()
    for name, used, own in (
        ("schedule", settings.schedule, notation(subject.schedule)),
        ("tokenizer", settings.tokenizer, tokenizer.fingerprint),
    ):
        if used != own:
            raise ValueError(f"{results}: holds answers with the {name} {used}; {run} has {own}")
    with tempfile.TemporaryDirectory() as folder:
        export_run(run, Path(folder) / "theirs")
        model = AutoModelForCausalLM.from_pretrained(
            Path(folder) / "theirs", dtype=getattr(torch, settings.compute_dtype)
        ).eval()
    scorer = HuggingFaceScorer(model)
    line = ProgressLine()
    progress = counting(line, "tasks")
    for number, task in enumerate(opened.choose(tuple(result.tasks))):
        asking = asked(opened, task, limit=settings.limit)
        saved = read_answers(measure.details_in(results) / f"{task.label}.jsonl")[:examples]
        again = answers(
            asking,
            [answer.example for answer in saved],
            scorer=scorer,
            encode=tokenizer.encode_all,
            context=settings.context,
        )
        yield compared(task.label, saved, again)
        progress("with transformers", number + 1, len(result.tasks))
    line.close()


def main() -> None:
    """Score, compare, print the table."""
    parser = argparse.ArgumentParser(description="CORE here and in transformers.")
    parser.add_argument("run", type=Path, help="an imported model")
    parser.add_argument("--results", type=Path, required=True, help="--out of evaluate core")
    parser.add_argument("--bundle", type=Path, help="as for evaluate core")
    parser.add_argument("--examples", type=int, default=10, help="of each task")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    given = parser.parse_args()
    if given.examples < 1:
        parser.error(f"--examples must be at least 1, got {given.examples}")
    rows = list(measured(given.run, given.results, given.bundle, given.examples))
    if given.json:
        facts = {"tasks": [asdict(row) for row in rows], "provenance": collect_provenance()}
        print(json_text(facts), end="")
        return
    table = table_of("task", "examples", "differ", "largest loss difference", "smallest margin")
    for row in rows:
        margin = "" if row.smallest_margin is None else f"{row.smallest_margin:.1e}"
        difference = row.largest_loss_difference
        largest = "" if difference is None else f"{difference:.1e}"
        table.add_row(row.task, str(row.examples), str(row.differing), largest, margin)
    print(header())
    print_table(table)
    examples, differing = sum(row.examples for row in rows), sum(row.differing for row in rows)
    print(f"{differing} of {examples} decisions differ")


if __name__ == "__main__":
    run_program(main)
