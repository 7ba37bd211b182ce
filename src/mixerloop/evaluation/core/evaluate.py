"""Ask a model every example of some tasks; killed and started again, go on where it stopped.

    FOLDER/settings.json       what the answers depend on; others are refused
    FOLDER/LABEL.jsonl         a finished task: one answer per line, in order
    FOLDER/LABEL.json          what it took
    FOLDER/parts/              finished blocks of the task that is running

Which examples run together depends on their numbers alone, so an evaluation that was killed ends in
the same answers, bit for bit.
"""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mixerloop import runs
from mixerloop.evaluation.core.answers import Answer, answer
from mixerloop.evaluation.core.bundle import Bundle
from mixerloop.evaluation.core.prompts import prompts, shots_of, shuffled
from mixerloop.evaluation.core.questions import Encode, Question, question
from mixerloop.evaluation.core.tasks import Example, Task
from mixerloop.evaluation.scorer import Scorer
from mixerloop.strict import from_dict

SETTINGS = "settings.json"
PARTS = "parts"
BLOCK_EXAMPLES = 512
LEAST_CONTEXT = 2

Progress = Callable[[str, int, int, int], None]
"""Told a task, how many of its examples are answered, of how many, and tokens fed so far."""


@dataclass(frozen=True)
class AskedTask:
    """A task with the examples that are asked, in the order that numbers them."""

    task: Task
    examples: list[Example]
    limited: bool
    """Whether the task has more."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What it took to answer a task."""

    tokens_plain: int
    """Tokens to feed if every sequence were scored whole."""
    tokens_processed: int
    seconds: float


def asked(bundle: Bundle, task: Task, *, limit: int | None) -> AskedTask:
    """The first examples of a task after the shuffle; the shots are drawn from these too."""
    examples = shuffled(bundle.examples(task))
    chosen = examples[:limit]
    if len(chosen) <= task.num_shots:
        raise ValueError(
            f"{task.label}: {len(chosen)} examples do not give {task.num_shots} others to show "
            f"before each; take {task.num_shots + 1} or more"
        )
    return AskedTask(task, chosen, limited=len(chosen) < len(examples))


def questions(
    asking: AskedTask, numbers: Sequence[int], *, encode: Encode, context: int
) -> list[Question]:
    """Some examples of a task as token ids."""
    task, examples = asking.task, asking.examples
    texts = []
    for number in numbers:
        shots = shots_of(number, num_examples=len(examples), num_shots=task.num_shots)
        texts.append(
            prompts(
                examples[number],
                shots=[examples[shot] for shot in shots],
                delimiter=task.delimiter,
            )
        )
    encoded = iter(encode([text for of_example in texts for text in of_example]))
    return [
        question(task.kind, [next(encoded) for _ in of_example], context=context)
        for of_example in texts
    ]


def answers(
    asking: AskedTask, numbers: Sequence[int], *, scorer: Scorer, encode: Encode, context: int
) -> list[Answer]:
    """A model's answers to some examples of a task."""
    tokens = questions(asking, numbers, encode=encode, context=context)
    scores = scorer.score([one.candidates for one in tokens])
    return [
        answer(number, asking.examples[number], one, of_one)
        for number, one, of_one in zip(numbers, tokens, scores, strict=True)
    ]


def blocks(num_examples: int) -> list[range]:
    """The examples that are answered and kept together."""
    starts = range(0, num_examples, BLOCK_EXAMPLES)
    return [range(start, min(start + BLOCK_EXAMPLES, num_examples)) for start in starts]


class AnswerFolder:
    """Where answers are kept, and taken up again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, settings: dict[str, Any], tasks: Sequence[Task], *, replace: bool) -> None:
        """Begin, or go on with, the evaluation that `settings` describes.

        Answers to any of `tasks` that do not belong to it go away, the settings first: without
        them nothing is ever taken up.
        """
        path = self.folder / SETTINGS
        if path.exists() and not replace:
            before = runs.read_json(path)
            for key in before.keys() | settings.keys():
                if before.get(key) != settings.get(key):
                    raise ValueError(
                        f"{self.folder}: holds answers with {key} {before.get(key)}, not "
                        f"{settings.get(key)}; give --replace to drop them or --out for another "
                        "folder"
                    )
            return
        path.unlink(missing_ok=True)
        for task in tasks:
            for suffix in ("json", "jsonl"):
                (self.folder / f"{task.label}.{suffix}").unlink(missing_ok=True)
        shutil.rmtree(self.folder / PARTS, ignore_errors=True)
        runs.write_file(path, runs.to_json(settings))

    def work(self, asking: AskedTask) -> Work | None:
        """What a finished task took."""
        path = self.folder / f"{asking.task.label}.json"
        return from_dict(Work, runs.read_json(path)) if path.exists() else None

    def answers(self, label: str) -> list[Answer]:
        """The answers of a finished task."""
        return read_answers(self.folder / f"{label}.jsonl")

    def run(
        self,
        asking: AskedTask,
        *,
        scorer: Scorer,
        encode: Encode,
        context: int,
        progress: Progress,
    ) -> Work:
        """Answer what is not answered yet, and finish the task."""
        label, total = asking.task.label, len(asking.examples)
        (self.folder / PARTS).mkdir(exist_ok=True)
        parts = []
        for block in blocks(total):
            path = self.folder / PARTS / f"{label}-{block.start:06}.json"
            parts.append(path)
            if not path.exists():
                began, before = time.monotonic(), scorer.tokens_processed
                found = answers(asking, block, scorer=scorer, encode=encode, context=context)
                part = {
                    "seconds": time.monotonic() - began,
                    "tokens_processed": scorer.tokens_processed - before,
                    "answers": [asdict(one) for one in found],
                }
                runs.write_file(path, json.dumps(part))
            progress(label, block.stop, total, scorer.tokens_processed)
        return self._finish(label, parts)

    def _finish(self, label: str, parts: list[Path]) -> Work:
        done = [runs.read_json(part) for part in parts]
        lines = [one for part in done for one in part["answers"]]
        work = Work(
            tokens_plain=sum(one["tokens_plain"] for one in lines),
            tokens_processed=sum(part["tokens_processed"] for part in done),
            seconds=sum(part["seconds"] for part in done),
        )
        text = "".join(json.dumps(one) + "\n" for one in lines)
        runs.write_file(self.folder / f"{label}.jsonl", text)
        runs.write_file(self.folder / f"{label}.json", runs.to_json(asdict(work)))
        for part in parts:
            part.unlink()
        return work


def read_answers(path: Path) -> list[Answer]:
    """The answers of a file; they must be numbered from 0."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file of answers")
    found = []
    for number, line in enumerate(path.read_text().splitlines()):
        try:
            one = Answer(**json.loads(line))
            if one.example != number or not isinstance(one.right, bool):
                raise ValueError("not the answer that belongs here")
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number + 1}: {error}") from None
        found.append(one)
    if not found:
        raise ValueError(f"{path}: no answers")
    return found
