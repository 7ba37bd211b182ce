"""Requests to prepare data: one type for each source, made by a command or from a study file.

`parse_preparation(["stdlib", "--vocab-size", "2048"])` reads the arguments of
`mixerloop data prepare`. The field docstrings are the help texts of the command.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mixerloop import paper
from mixerloop.data.corpora import (
    STDLIB_HELD_OUT_SHARE,
    WORKERS,
    prepare_climbmix,
    prepare_stdlib,
    prepare_text,
)
from mixerloop.data.option_words import POSITIONAL, from_words
from mixerloop.data.prepare import Progress, is_unprepared
from mixerloop.data.prepared import Prepared
from mixerloop.data.shards import Manifest
from mixerloop.data.task_folder import prepare_task
from mixerloop.data.tasks.registry import TASKS, task_of
from mixerloop.data.tasks.task import TaskSettings
from mixerloop.data.token_folder import TokenFolder
from mixerloop.parsing import suggest

NOT_THE_PAPERS = {
    "tokenizer": f"not the paper's, whose sha256 is {paper.TOKENIZER_SHA256}",
    "train_tokens": f"not the paper's {paper.TRAIN_TOKENS:,}, from shards 0-169",
}


@dataclass(frozen=True, kw_only=True)
class PreparationResult:
    """Data that a request has prepared."""

    data: Prepared
    facts: dict[str, object]
    """The summary as JSON values, for programs."""
    lines: list[str]
    """The summary as lines of text, for people."""


class Preparation(ABC):
    """A request to prepare data."""

    @property
    def context(self) -> int | None:
        """Tokens of a window if the data decides (a task); None if the caller decides (a text)."""
        return None

    @abstractmethod
    def prepare(self, out: Path, *, progress: Progress | None = None) -> PreparationResult:
        """Prepare the data, or resume a preparation that was stopped."""


@dataclass(frozen=True, kw_only=True)
class TokensPreparation(Preparation):
    """A request to tokenise a text."""

    about: ClassVar[str]
    """Help text of the command."""

    tokenizer: Path | None = None
    """A SentencePiece model, a tokenizer.json, or a folder with one; by default one is trained."""
    vocab_size: int | None = None
    """Size of the tokenizer to train, 4,096 by default, and less for a small text."""
    workers: int = WORKERS
    """Processes that tokenise; the result does not depend on their number."""

    def prepare(self, out: Path, *, progress: Progress | None = None) -> PreparationResult:
        """Tokenise the source into shards."""
        manifest = self._prepare(out, progress)
        data = TokenFolder(out)
        same = self.as_in_the_paper(manifest)
        return PreparationResult(
            data=data,
            facts=data.summary() | {"as_in_the_paper": same},
            lines=[
                *data.counts(),
                *(
                    f"  {fact.replace('_', ' ')}: "
                    f"{'as in the paper' if agrees else NOT_THE_PAPERS[fact]}"
                    for fact, agrees in same.items()
                ),
            ],
        )

    def as_in_the_paper(self, manifest: Manifest) -> dict[str, bool]:
        """Which facts of the data equal the paper's; empty for sources the paper does not use."""
        del manifest
        return {}

    @abstractmethod
    def _prepare(self, out: Path, progress: Progress | None) -> Manifest: ...


@dataclass(frozen=True, kw_only=True)
class ClimbmixPreparation(TokensPreparation):
    """A request to prepare ClimbMix, the paper's corpus."""

    about = "The paper's corpus, shards 00000-00169 and 06542 held out, from the Hugging Face hub."

    shards: str = "0-169"
    """Training shards, a number or a range such as 0-9."""
    from_: Path | None = None
    """A folder that holds the parquet files; without this option they are downloaded."""

    def as_in_the_paper(self, manifest: Manifest) -> dict[str, bool]:
        """Compare the tokenizer and the number of training tokens."""
        tokens = sum(shard.tokens for shard in manifest.train)
        return {
            "tokenizer": manifest.tokenizer_sha256 == paper.TOKENIZER_SHA256,
            "train_tokens": tokens == paper.TRAIN_TOKENS,
        }

    def _prepare(self, out: Path, progress: Progress | None) -> Manifest:
        return prepare_climbmix(
            out,
            shards=_range(self.shards),
            source=self.from_,
            tokenizer=self.tokenizer,
            vocab_size=self.vocab_size,
            workers=self.workers,
            progress=progress,
        )


@dataclass(frozen=True, kw_only=True)
class TextPreparation(TokensPreparation):
    """A request to prepare files of the user."""

    about = "Your own .txt, .jsonl (.xz, .gz, .zst) and .parquet files, or folders of them."

    paths: tuple[Path, ...] = dataclasses.field(default=(), metadata={POSITIONAL: True})
    """Files, or folders that are searched for them."""
    held_out: tuple[Path, ...] = ()
    """Files that are held out whole and not trained on, even if a folder above names them too."""
    held_out_share: float | None = None
    """Share of the text to hold out: by default 0.01, and up to 0.1 of fewer than 1,000 documents,
    which are held out in blocks."""

    def _prepare(self, out: Path, progress: Progress | None) -> Manifest:
        return prepare_text(
            self.paths,
            out,
            held_out=self.held_out,
            held_out_share=self.held_out_share,
            tokenizer=self.tokenizer,
            vocab_size=self.vocab_size,
            workers=self.workers,
            progress=progress,
        )


@dataclass(frozen=True, kw_only=True)
class StdlibPreparation(TokensPreparation):
    """A request to prepare the source of Python's standard library."""

    about = "The source of this Python's standard library: text on every machine, no download."

    held_out_share: float = STDLIB_HELD_OUT_SHARE
    """Share of the files that is held out by hash."""

    def _prepare(self, out: Path, progress: Progress | None) -> Manifest:
        return prepare_stdlib(
            out,
            held_out_share=self.held_out_share,
            tokenizer=self.tokenizer,
            vocab_size=self.vocab_size,
            workers=self.workers,
            progress=progress,
        )


@dataclass(frozen=True, kw_only=True)
class TaskPreparation(Preparation):
    """A request to prepare a synthetic task with its settings."""

    settings: TaskSettings

    @property
    def context(self) -> int:
        """The length of a sequence minus one: its last token is a label only."""
        return task_of(self.settings)(self.settings, "train").context

    def prepare(self, out: Path, *, progress: Progress | None = None) -> PreparationResult:
        """Write the settings; there is no progress to report."""
        del progress
        data = prepare_task(out, self.settings)
        lines = [f"{out}: {data.task.title}, made as they are needed"]
        return PreparationResult(data=data, facts=data.summary(), lines=lines)


TEXTS: dict[str, type[TokensPreparation]] = {
    "stdlib": StdlibPreparation,
    "text": TextPreparation,
    "climbmix": ClimbmixPreparation,
}
"""Sources that are tokenised, by name."""


def parse_preparation(words: Sequence[str]) -> Preparation:
    """Read the arguments of `mixerloop data prepare`, except `--out` and `--json`."""
    name, *options = words or ("",)
    if name in TASKS:
        return TaskPreparation(settings=from_words(TASKS[name].settings_type, options))
    if name not in TEXTS:
        raise ValueError(f"'{name}' makes no data; {suggest(name, (*TASKS, *TEXTS))}")
    return from_words(TEXTS[name], options)


def prepare_missing(
    folder: Path, words: Sequence[str], *, progress: Progress | None = None
) -> PreparationResult | None:
    """Prepare a folder by the arguments of `mixerloop data prepare`, or resume its preparation.

    A folder that holds anything else is left alone, and None is returned. The arguments are checked
    in any case.
    """
    preparation = parse_preparation(words)
    if not is_unprepared(folder):
        return None
    return preparation.prepare(folder, progress=progress)


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
        raise ValueError(f"--shards '{text}': give a number or a range such as 0-9")
    return range(int(first), int(last or first) + 1)
