"""A prepared folder of a synthetic task: a manifest with the task's settings.

    DIR/manifest.json    {"format": "mixerloop-NAME-1", "settings": {...}}

Sequences are drawn when they are read, so nothing else is stored.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeGuard, get_args

import numpy as np

from mixerloop.data.held_out import HeldOutTask, held_out_task
from mixerloop.data.shards import MANIFEST, fingerprint, seal_manifest
from mixerloop.data.sources import Split
from mixerloop.data.tasks.registry import TASKS, task_of
from mixerloop.data.tasks.task import Task, TaskSettings
from mixerloop.data.vocabulary import Vocabulary, task_files
from mixerloop.data.windows import Draw, DrawnWindows, check_samples
from mixerloop.files import SealedFile, json_text, new_folder, write_file
from mixerloop.parsing import checked, from_dict, one_of, suggest


def format_of(name: str) -> str:
    """The value of `format` in the manifest of a task."""
    return f"mixerloop-{name}-1"


def is_task_manifest(manifest: object) -> TypeGuard[dict[str, Any]]:
    """Whether the content of a manifest is that of a synthetic task, known or unknown."""
    return isinstance(manifest, dict) and (
        manifest.keys() == {"format", "settings"} or manifest.get("format") in _by_format()
    )


class TaskFolder:
    """A synthetic task as prepared data; fits `Prepared`."""

    def __init__(self, folder: Path, kind: type[Task], settings: TaskSettings) -> None:
        self.folder, self.kind, self.settings = folder, kind, settings
        self.task = kind(settings, "held_out")

    @classmethod
    def open(cls, folder: Path, manifest: Mapping[str, Any]) -> "TaskFolder":
        """Read the settings of a manifest strictly."""
        path, kinds = folder / MANIFEST, _by_format()
        format_ = manifest.get("format")
        if format_ not in kinds:
            raise ValueError(f"{path}: no task has the format {format_}; {suggest(format_, kinds)}")
        kind = kinds[format_]
        try:
            settings = from_dict(kind.settings_type, manifest.get("settings", {}), "settings.")
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        return cls(folder, kind, settings)

    @property
    def fingerprint(self) -> str:
        """The sha256 of the manifest."""
        return fingerprint(self.folder)

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.task.vocab_size

    @property
    def vocabulary(self) -> Vocabulary:
        """What the token ids mean: the symbols of the task."""
        return Vocabulary(num_ids=self.vocab_size, task=self.task.name)

    @property
    def context(self) -> int:
        """The length of a sequence minus one: its last token is a label only."""
        return self.task.context

    def tokenizer(self) -> None:
        """None: a task has no text."""

    def vocabulary_files(self) -> Mapping[str, bytes]:
        """The file with the name of the task."""
        return task_files(self.vocabulary)

    def sealed_files(self) -> tuple[SealedFile, ...]:
        """Empty: sequences are drawn when they are read."""
        return ()

    @checked
    def windows(self, split: Split, context: int | None) -> Task:
        """The sequences of a split."""
        self._check(context)
        return self.kind(self.settings, one_of(Split, split, "split"))

    @checked
    def held_out(self, context: int | None) -> HeldOutTask:
        """The answers of the held-out sequences."""
        self._check(context)
        return held_out_task(self.task)

    @checked
    def draw(self, draw: Draw, *, context: int) -> DrawnWindows:
        """Held-out sequences; the predictions of their last answers are read."""
        del context  # the length of a sequence is fixed
        indices = draw.indices(self.task.num_windows, of=f"sequences of {self.task.name}")
        positions = (self.task.answer_positions() - 1)[-draw.num_positions :]
        return DrawnWindows(self.task.sequences(indices).tokens, positions)

    def samples(self, num: int, *, characters: int) -> dict[Split, list[str]]:
        """The first `num` sequences of each split as text."""
        check_samples(num, characters)  # a sequence is short enough to show whole
        num = min(num, self.task.num_windows)
        return {
            split: [
                self.task.written(row)
                for row in self.kind(self.settings, split).sequences(np.arange(num)).tokens
            ]
            for split in get_args(Split)
        }

    def summary(self) -> dict[str, object]:
        """The path of the folder and the settings of the task."""
        return {"folder": str(self.folder), **_values(self.settings)}

    def counts(self) -> list[str]:
        """Empty: sequences are drawn when they are read."""
        return []

    def verify(self) -> str:
        """Return the verdict; the settings were checked when the folder was opened."""
        return f"{self.folder}: settings of {self.task.name}, sound"

    def _check(self, context: int | None) -> None:
        if context not in (None, self.context):
            raise ValueError(
                f"{self.folder}: its sequences have {self.context} tokens, not {context}"
            )


def prepare_task(out: Path | str, settings: TaskSettings) -> TaskFolder:
    """Write the settings of a synthetic task into a new folder."""
    kind = task_of(settings)
    with new_folder(Path(out)) as new:
        manifest = {"format": format_of(kind.name), "settings": _values(settings)}
        write_file(new / MANIFEST, json_text(manifest))
        seal_manifest(new)
    return TaskFolder(Path(out), kind, settings)


def _by_format() -> dict[str, type[Task]]:
    return {format_of(name): kind for name, kind in TASKS.items()}


def _values(settings: TaskSettings) -> dict[str, Any]:
    return asdict(settings)
