"""The folder of the answers of an evaluation, from which an interrupted evaluation resumes.

    FOLDER/settings.json       settings of the answers; other settings are rejected
    FOLDER/LABEL.jsonl         a finished task: one answer per line, in order
    FOLDER/LABEL.work.json     tokens and seconds that the task took
    FOLDER/parts/              finished blocks of the task that is running

The division of examples into batches depends on their numbers alone, so a resumed evaluation gives
the same answers, bit for bit.
"""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mixerloop.evaluation.core.answers import Answer
from mixerloop.evaluation.core.asking import AskedTask, answers, blocks
from mixerloop.evaluation.core.core_result import CoreSettings
from mixerloop.evaluation.core.questions import Encode
from mixerloop.evaluation.core.tasks import Task
from mixerloop.evaluation.scorer import Scorer
from mixerloop.files import json_text, read_json, remove_leftovers, write_file
from mixerloop.parsing import from_dict, one_line
from mixerloop.results import encode

SETTINGS = "settings.json"
PARTS = "parts"

Progress = Callable[[str, int, int], None]
"""Called after each block with the task, the block's examples, and its processed tokens."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The tokens and the time that it took to answer a task."""

    tokens_plain: int
    """Tokens to process if every sequence were scored whole."""
    tokens_processed: int
    seconds: float


class AnswerFolder:
    """The answers of one evaluation; the caller holds the folder's lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, settings: CoreSettings, tasks: tuple[Task, ...], *, replace: bool) -> None:
        """Start or resume the evaluation that `settings` describes.

        A folder with other settings is rejected. With `replace`, its settings are deleted, and then
        its answers to `tasks`. The settings come first, because answers without settings are never
        reused.
        """
        path, written = self.folder / SETTINGS, encode(settings)
        for folder in (self.folder, self.folder / PARTS):
            remove_leftovers(folder)
        if path.exists():
            differing = _first_difference(path, written)
            if differing is None:
                return
            key, before = differing
            if not (replace or (key == "forms" and before is None)):  # which 0.1.0 did not write
                raise ValueError(
                    f"{self.folder}: holds answers with {key} {before}, not {written.get(key)}; "
                    "replace drops them, or name another folder for the results"
                )
        path.unlink(missing_ok=True)
        for task in tasks:
            for file in (self._answers(task.label), self._work(task.label)):
                file.unlink(missing_ok=True)
        if (self.folder / PARTS).exists():
            shutil.rmtree(self.folder / PARTS)
        write_file(path, json_text(written))

    def work(self, label: str) -> Work | None:
        """The work of a finished task; None for an unfinished task."""
        path = self._work(label)
        if not path.exists():
            return None
        try:
            return from_dict(Work, read_json(path))
        except (ValueError, TypeError, AttributeError) as error:
            raise _damaged(path, one_line(error)) from None

    def answers(self, asking: AskedTask) -> list[Answer]:
        """Read the answers of a finished task, which must cover every example."""
        path = self._answers(asking.task.label)
        task_answers = read_answers(path)
        if len(task_answers) != len(asking.examples):
            raise _damaged(path, f"{len(task_answers)} answers to {len(asking.examples)} examples")
        return task_answers

    def run(
        self,
        asking: AskedTask,
        *,
        scorer: Scorer,
        encode: Encode,
        context: int,
        progress: Progress,
    ) -> Work:
        """Answer the blocks that have no answers yet, and finish the task."""
        label = asking.task.label
        (self.folder / PARTS).mkdir(exist_ok=True)
        parts = []
        for block in blocks(len(asking.examples)):
            path = self._part(label, block)
            parts.append(path)
            if path.exists():
                continue
            began, before = time.monotonic(), scorer.tokens_processed
            block_answers = answers(asking, block, scorer=scorer, encode=encode, context=context)
            processed = scorer.tokens_processed - before
            part = {
                "seconds": time.monotonic() - began,
                "tokens_processed": processed,
                "answers": [asdict(answer) for answer in block_answers],
            }
            write_file(path, json.dumps(part))
            progress(label, len(block), processed)
        return self._finish(asking, parts)

    def num_answered(self, asking: AskedTask) -> int:
        """The number of examples in finished blocks of a task."""
        return sum(
            len(block)
            for block in blocks(len(asking.examples))
            if self._part(asking.task.label, block).exists()
        )

    def _finish(self, asking: AskedTask, parts: list[Path]) -> Work:
        label = asking.task.label
        try:
            done = [read_json(part) for part in parts]
            lines = [line for part in done for line in part["answers"]]
            if [line["example"] for line in lines] != list(range(len(asking.examples))):
                raise ValueError("not all examples in order")
            work = Work(
                tokens_plain=sum(line["tokens_plain"] for line in lines),
                tokens_processed=sum(part["tokens_processed"] for part in done),
                seconds=sum(part["seconds"] for part in done),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(self.folder / PARTS, f"{label}: {one_line(error)}") from None
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_file(self._answers(label), text)
        write_file(self._work(label), json_text(asdict(work)))
        for part in parts:
            part.unlink()
        return work

    def _answers(self, label: str) -> Path:
        return self.folder / f"{label}.jsonl"

    def _work(self, label: str) -> Path:
        return self.folder / f"{label}.work.json"

    def _part(self, label: str, block: range) -> Path:
        return self.folder / PARTS / f"{label}-{block.start:06}-{block.stop:06}.json"


def _damaged(path: Path, how: str) -> ValueError:
    return ValueError(f"{path}: not as it was written ({how}); remove it and evaluate again")


def _first_difference(path: Path, settings: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The key of the first setting that differs from a file, and the value in the file."""
    try:
        before = read_json(path)
    except ValueError:
        before = None
    if not isinstance(before, dict):
        return SETTINGS, "that cannot be read"
    for key in (*settings, *before):
        if before.get(key) != settings.get(key):
            return key, before.get(key)
    return None


def read_answers(path: Path) -> list[Answer]:
    """Read the answers of a file; their examples must be numbered from 0."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file of answers")
    answers_of_file = []
    for number, line in enumerate(path.read_bytes().splitlines()):
        try:
            answer = Answer(**json.loads(line))
            if answer.example != number or not isinstance(answer.right, bool):
                raise ValueError("not the answer that belongs here")
        except (TypeError, ValueError) as error:
            raise _damaged(path, f"line {number + 1}: {one_line(error)}") from None
        answers_of_file.append(answer)
    if not answers_of_file:
        raise _damaged(path, "no answers")
    return answers_of_file
