"""Prepared data as one object: `open_prepared(folder)`.

A prepared folder holds the tokens of a text or the settings of a synthetic task. Training and every
measurement use the same object for both.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from mixerloop.data.held_out import HeldOut
from mixerloop.data.shards import MANIFEST, check_manifest_seal, seal_manifest
from mixerloop.data.sources import Split
from mixerloop.data.task_folder import TaskFolder, is_task_manifest
from mixerloop.data.tasks.task import Task
from mixerloop.data.token_folder import TokenFolder
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.data.vocabulary import Vocabulary
from mixerloop.data.windows import Draw, DrawnWindows, Windows
from mixerloop.files import CONTENTS, SealedFile, is_there, read_json
from mixerloop.parsing import checked


@runtime_checkable
class Prepared(Protocol):
    """Data that a model can be trained on and measured with."""

    @property
    def folder(self) -> Path:
        """The folder that was opened."""
        ...

    @property
    def fingerprint(self) -> str:
        """Identity of the data: two folders with the same fingerprint hold the same data."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def context(self) -> int | None:
        """Tokens of a window if the data decides (a task); None if the caller decides (a text)."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """What the token ids mean."""
        ...

    @property
    def task(self) -> Task | None:
        """The held-out split of the synthetic task, or None for tokens of a text."""
        ...

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that made the tokens; None for a task."""
        ...

    def vocabulary_files(self) -> Mapping[str, bytes]:
        """The files by name with which a checkpoint says its vocabulary, such as a tokenizer."""
        ...

    def sealed_files(self) -> tuple[SealedFile, ...]:
        """The files that hold the tokens, as they were prepared; training checks them."""
        ...

    def windows(self, split: Split, context: int | None) -> Windows:
        """The whole windows of a split, for training batches."""
        ...

    def held_out(self, context: int | None) -> HeldOut:
        """Every scored token of the held-out set with its document, for the held-out NLL."""
        ...

    def draw(self, draw: Draw, *, context: int) -> DrawnWindows:
        """Held-out windows drawn for transport; a task ignores `context` and uses its own."""
        ...

    def samples(self, num: int, *, characters: int) -> dict[Split, list[str]]:
        """A few examples of each split as text; documents are cut to `characters`."""
        ...

    def summary(self) -> dict[str, object]:
        """Facts for programs: the folder, and the counts of its tokens or the task's settings."""
        ...

    def counts(self) -> list[str]:
        """The counts of the splits as lines for people; empty for a task."""
        ...

    def verify(self) -> str:
        """Check everything against the manifest; returns the verdict as a sentence."""
        ...


@checked
def open_prepared(folder: Path | str) -> Prepared:
    """Open a prepared folder: manifest and tokenizer are checked, and no token is read."""
    folder = Path(folder)
    check_manifest_seal(folder)
    manifest = read_json(folder / MANIFEST)
    return _opened(folder, manifest)


def verify_prepared(folder: Path | str, *, seal: bool = False) -> tuple[Prepared, str]:
    """Check every file of a prepared folder; returns the data and the verdict as a sentence.

    `seal` seals a folder of version 0.1.0, which had no seal, after everything else was checked.
    """
    folder = Path(folder)
    if not seal or is_there(folder / CONTENTS):
        prepared = open_prepared(folder)
        return prepared, prepared.verify()
    prepared = _opened(folder, read_json(folder / MANIFEST))
    verdict = prepared.verify()
    seal_manifest(folder)
    return prepared, f"{verdict}; sealed"


def _opened(folder: Path, manifest: object) -> Prepared:
    if is_task_manifest(manifest):
        return TaskFolder.open(folder, manifest)
    return TokenFolder(folder)
