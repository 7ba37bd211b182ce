"""The folder of the answers of an evaluation, from which an interrupted evaluation resumes.

    FOLDER/settings.json       settings of the answers; other settings are rejected
    FOLDER/LABEL.jsonl         a finished task: one answer per line, in order
    FOLDER/LABEL.work.json     tokens and seconds that the task took, and the hash of its answers
    FOLDER/parts/              finished blocks of the task that is running

All JSON files are sealed. The division of examples into batches depends on their numbers alone, so
a resumed evaluation gives the same answers, bit for bit.
"""

import glob
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mixerloop.evaluation.core.answers import Answer
from mixerloop.evaluation.core.asking import AskedTask, answers, blocks
from mixerloop.evaluation.core.core_result import CoreSettings
from mixerloop.evaluation.core.questions import Encode
from mixerloop.evaluation.core.tasks import Task
from mixerloop.evaluation.scorer import Scorer
from mixerloop.files import (
    LOCK,
    SEAL,
    file_sha256,
    read_json,
    read_sealed,
    remove_leftovers,
    write_file,
    write_sealed,
)
from mixerloop.ownership import REPLACES, drop_link
from mixerloop.parsing import from_dict, one_line
from mixerloop.result_files import UNFINISHED
from mixerloop.results import encode

SETTINGS = "settings.json"
PARTS = "parts"
BLOCK_NUMBERS = "-".join(["[0-9]" * 6] * 2)
"""A pattern of the two numbers of a block in the name of its part."""

Progress = Callable[[str, int, int], None]
"""Called after each block with the task, the block's examples, and its processed tokens."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The tokens and the time that it took to answer a task."""

    tokens_plain: int
    """Tokens to process if every sequence were scored whole."""
    tokens_processed: int
    seconds: float
    answers_sha256: str
    """The sha256 of the file of answers."""


class AnswerFolder:
    """The answers of one evaluation; the caller holds the folder's lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check_ours(self, *, overwrite: bool) -> None:
        """Raise if the folder holds files that this program did not write, unless `overwrite`.

        With `overwrite`, links are removed, so that nothing is written through a link.
        """
        if not self.folder.is_dir():
            return
        files = sorted((*self.folder.iterdir(), *(self.folder / PARTS).glob("*")))
        for link in filter(Path.is_symlink, files):
            if not overwrite:
                raise ValueError(f"{link}: is a link, which is not written through; {REPLACES}")
            drop_link(link)
        others = [
            file for file in files if file.name not in (LOCK, PARTS) and file.suffix != ".partial"
        ]
        if others and not overwrite and not any(map(_is_sealed, self._sealed_files())):
            raise ValueError(f"{others[0]}: not a file that mixerloop wrote; {REPLACES}")

    def _sealed_files(self) -> Iterator[Path]:
        yield self.folder / SETTINGS
        yield from self.folder.glob("*.work.json")
        yield from (self.folder / PARTS).glob("*.json")

    def open(self, settings: CoreSettings, tasks: tuple[Task, ...], *, replace: bool) -> None:
        """Start or resume the evaluation that `settings` describes.

        A folder with other settings is rejected. With `replace`, its settings are marked as
        unfinished and its answers to `tasks` are deleted. Marked settings are never used again.
        """
        path, written = self.folder / SETTINGS, encode(settings)
        for folder in (self.folder, self.folder / PARTS):
            remove_leftovers(folder)
        if path.exists():
            differing = _first_difference(path, written)
            if differing is None:
                return
            key, before = differing
            if not (replace or key == UNFINISHED or _is_of_0_1_0(path)):
                now = f", not {written[key]}" if key in written else ""
                raise ValueError(
                    f"{self.folder}: holds answers with {key} {before}{now}; replace drops them, "
                    "or name another folder for the results"
                )
            write_sealed(path, {UNFINISHED: self.folder.name})
        for task in tasks:
            for file in (self._answers(task.label), self._work(task.label)):
                file.unlink(missing_ok=True)
        if (self.folder / PARTS).exists():
            shutil.rmtree(self.folder / PARTS)
        write_sealed(path, written)

    def work(self, label: str) -> Work | None:
        """The work of a finished task; None for an unfinished task."""
        path = self._work(label)
        if not (path.exists() and self._answers(label).exists()):
            return None
        try:
            return from_dict(Work, read_sealed(path))
        except ValueError as error:
            raise _damaged(path, one_line(error)) from None

    def answers(self, asking: AskedTask) -> list[Answer]:
        """Read the answers of a finished task, which must cover every example."""
        path = self._answers(asking.task.label)
        task_answers = read_answers(path)
        if len(task_answers) != len(asking.examples):
            raise _damaged(path, f"{len(task_answers)} answers to {len(asking.examples)} examples")
        work = self.work(asking.task.label)
        if work is None or file_sha256(path) != work.answers_sha256:
            raise _damaged(path, "its sha256 is not the recorded one")
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
        parts = {}
        for block in blocks(len(asking.examples)):
            path = self._part(label, block)
            if path.exists():
                parts[path] = _read_part(path, block)
                continue
            began, before = time.monotonic(), scorer.tokens_processed
            block_answers = answers(asking, block, scorer=scorer, encode=encode, context=context)
            processed = scorer.tokens_processed - before
            parts[path] = {
                "seconds": time.monotonic() - began,
                "tokens_processed": processed,
                "answers": [asdict(answer) for answer in block_answers],
            }
            write_sealed(path, parts[path])
            progress(label, len(block), processed)
        return self._finish(label, parts)

    def remove_parts(self, label: str) -> None:
        """Remove the blocks of a finished task that a stopped evaluation has left behind."""
        for part in (self.folder / PARTS).glob(f"{glob.escape(label)}-{BLOCK_NUMBERS}.json"):
            part.unlink()

    def num_answered(self, asking: AskedTask) -> int:
        """The number of examples in finished blocks of a task."""
        return sum(
            len(block)
            for block in blocks(len(asking.examples))
            if self._part(asking.task.label, block).exists()
        )

    def _finish(self, label: str, parts: Mapping[Path, dict[str, Any]]) -> Work:
        done = parts.values()
        lines = [line for part in done for line in part["answers"]]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        work = Work(
            tokens_plain=sum(line["tokens_plain"] for line in lines),
            tokens_processed=sum(part["tokens_processed"] for part in done),
            seconds=sum(part["seconds"] for part in done),
            answers_sha256=hashlib.sha256(text.encode()).hexdigest(),
        )
        write_file(self._answers(label), text)
        write_sealed(self._work(label), asdict(work))
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


def _read_part(path: Path, block: range) -> dict[str, Any]:
    """The saved answers to a block of examples."""
    try:
        part = read_sealed(path)
        if [line["example"] for line in part["answers"]] != list(block):
            raise ValueError("not these examples in order")
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, one_line(error)) from None
    return part


def _is_sealed(path: Path) -> bool:
    try:
        read_sealed(path)
    except ValueError:
        return path.name == SETTINGS and _is_of_0_1_0(path)
    return True


def _is_of_0_1_0(path: Path) -> bool:
    """Whether settings are of version 0.1.0, which named no forms and sealed no files."""
    try:
        settings = read_json(path)
    except ValueError:
        return False
    return isinstance(settings, dict) and "bundle" in settings and not {"forms", SEAL} & {*settings}


def _first_difference(path: Path, settings: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The key of the first setting that differs from a file, and the value in the file."""
    try:
        before = read_sealed(path)
    except ValueError:
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
