"""Where answers are kept; killed and started again, an evaluation goes on where it stopped.

    FOLDER/settings.json       what the answers depend on; others are refused
    FOLDER/LABEL.jsonl         a finished task: one answer per line, in order
    FOLDER/LABEL.work.json     what it took
    FOLDER/parts/              finished blocks of the task that is running

Which examples run together depends on their numbers alone, so an evaluation that was killed ends in
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
"""Told a task, how many of its examples have just been answered, and with how many tokens."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What it took to answer a task."""

    tokens_plain: int
    """Tokens to feed if every sequence were scored whole."""
    tokens_processed: int
    seconds: float


class AnswerFolder:
    """The answers of one evaluation; the caller holds the folder's lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, settings: CoreSettings, tasks: tuple[Task, ...], *, replace: bool) -> None:
        """Begin, or go on with, the evaluation that `settings` describes.

        To replace another one, its answers to `tasks` go away, and the settings before them:
        without settings nothing is ever taken up.
        """
        path, written = self.folder / SETTINGS, encode(settings)
        for folder in (self.folder, self.folder / PARTS):
            remove_leftovers(folder)
        if path.exists():
            differing = _first_difference(path, written)
            if differing is None:
                return
            if not replace:
                key, before = differing
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
        """What a task took; none if it is not finished."""
        path = self._work(label)
        if not path.exists():
            return None
        try:
            return from_dict(Work, read_json(path))
        except (ValueError, TypeError, AttributeError) as error:
            raise _damaged(path, one_line(error)) from None

    def answers(self, asking: AskedTask) -> list[Answer]:
        """The answers of a finished task."""
        path = self._answers(asking.task.label)
        found = read_answers(path)
        if len(found) != len(asking.examples):
            raise _damaged(path, f"{len(found)} answers to {len(asking.examples)} examples")
        return found

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
        label = asking.task.label
        (self.folder / PARTS).mkdir(exist_ok=True)
        parts = []
        for block in blocks(len(asking.examples)):
            path = self._part(label, block)
            parts.append(path)
            if path.exists():
                continue
            began, before = time.monotonic(), scorer.tokens_processed
            found = answers(asking, block, scorer=scorer, encode=encode, context=context)
            processed = scorer.tokens_processed - before
            part = {
                "seconds": time.monotonic() - began,
                "tokens_processed": processed,
                "answers": [asdict(one) for one in found],
            }
            write_file(path, json.dumps(part))
            progress(label, len(block), processed)
        return self._finish(asking, parts)

    def num_answered(self, asking: AskedTask) -> int:
        """How many examples of a task are in finished blocks."""
        return sum(
            len(block)
            for block in blocks(len(asking.examples))
            if self._part(asking.task.label, block).exists()
        )

    def _finish(self, asking: AskedTask, parts: list[Path]) -> Work:
        label = asking.task.label
        try:
            done = [read_json(part) for part in parts]
            lines = [one for part in done for one in part["answers"]]
            if [one["example"] for one in lines] != list(range(len(asking.examples))):
                raise ValueError("not all examples in order")
            work = Work(
                tokens_plain=sum(one["tokens_plain"] for one in lines),
                tokens_processed=sum(part["tokens_processed"] for part in done),
                seconds=sum(part["seconds"] for part in done),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(self.folder / PARTS, f"{label}: {one_line(error)}") from None
        text = "".join(json.dumps(one) + "\n" for one in lines)
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
    """The first setting that differs from the setting in a file, and its value in the file."""
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
    """The answers of a file; they must be numbered from 0."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file of answers")
    found = []
    for number, line in enumerate(path.read_bytes().splitlines()):
        try:
            one = Answer(**json.loads(line))
            if one.example != number or not isinstance(one.right, bool):
                raise ValueError("not the answer that belongs here")
        except (TypeError, ValueError) as error:
            raise _damaged(path, f"line {number + 1}: {one_line(error)}") from None
        found.append(one)
    if not found:
        raise _damaged(path, "no answers")
    return found
