"""The held-out set of prepared data: windows, and the document each scored token belongs to.

In a text every token but the very first is scored once, given the earlier tokens of its window. In
a synthetic task the answers are scored, and every sequence is a document.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from mixerloop.config import Documents
from mixerloop.data.shards import TokenSplit, verify_split
from mixerloop.data.tasks.task import Task
from mixerloop.data.tokenizer import Tokenizer
from mixerloop.data.windows import TokenWindows

BATCH_TOKENS = 65536
"""Tokens that `HeldOut.batches` reads at a time; a scorer cuts them into its own batches."""


TUNING_EVERY = 3
"""One document in this many is a document for tuning."""


class ScoredRows(NamedTuple):
    """The tokens of some windows, and for each token but the first of a window its document."""

    tokens: list[Int[np.ndarray, " tokens"]]
    documents: list[Int[np.ndarray, " context"]]
    """-1 where a token is not scored."""


@dataclass(frozen=True, kw_only=True)
class HeldOut(ABC):
    """Every scored token of a held-out split, with its document."""

    context: int
    """Tokens of a window."""
    num_windows: int
    """Number of windows, the shorter window at the end included."""
    num_documents: int
    num_tokens: int
    """Scored tokens."""
    text_bytes: np.ndarray | None
    """UTF-8 bytes of each document, in proportion; None for a task, which is not text."""

    @abstractmethod
    def read(self, indices: Int[np.ndarray, " windows"]) -> ScoredRows:
        """The windows with these numbers."""

    @abstractmethod
    def tokens_of_documents(self) -> Int[np.ndarray, " documents"]:
        """The number of scored tokens of each document."""

    def document_numbers(self) -> Int[np.ndarray, " documents"]:
        """The number of each document in the whole held-out set."""
        return np.arange(self.num_documents)

    def batches(self) -> Iterator[ScoredRows]:
        """All windows in order, about `BATCH_TOKENS` tokens at a time."""
        size = max(1, BATCH_TOKENS // self.context)
        for start in range(0, self.num_windows, size):
            rows = self.read(np.arange(start, min(start + size, self.num_windows)))
            if rows.tokens:
                yield rows

    def only(self, documents: Documents) -> "HeldOut":
        """The held-out set with only some of its documents scored; the others are still context.

        No document is both in "tuning" and in "test".
        """
        if documents == "all":
            return self
        chosen = chosen_documents(self.num_documents, documents)
        return _ChosenDocuments(
            context=self.context,
            num_windows=self.num_windows,
            num_documents=int(chosen.sum()),
            num_tokens=int(self.tokens_of_documents()[chosen].sum()),
            text_bytes=None if self.text_bytes is None else self.text_bytes[chosen],
            whole=self,
            numbers=np.where(chosen, np.cumsum(chosen) - 1, -1),
        )


def chosen_documents(number: int, documents: Documents) -> Bool[np.ndarray, " documents"]:
    """Which of the held-out documents are chosen; raises if an interval takes more than these."""
    is_tuning = np.arange(number) % TUNING_EVERY == 0
    of = {"all": np.ones(number, dtype=bool), "tuning": is_tuning, "test": ~is_tuning}
    chosen = of[documents]
    if chosen.sum() < 2:
        raise ValueError(
            f"{number} held-out documents leave {chosen.sum()} for {documents}; an interval takes "
            "two or more"
        )
    return chosen


@dataclass(frozen=True, kw_only=True)
class _ChosenDocuments(HeldOut):
    """A held-out set of which only some documents are scored."""

    whole: HeldOut
    numbers: Int[np.ndarray, " documents"]
    """The new number of each document of the whole set; -1 if the document is not scored."""

    def read(self, indices: Int[np.ndarray, " windows"]) -> ScoredRows:
        """The windows with these numbers that have a scored token."""
        rows = self.whole.read(indices)
        documents = [np.where(of_row >= 0, self.numbers[of_row], -1) for of_row in rows.documents]
        kept = [index for index, of_row in enumerate(documents) if (of_row >= 0).any()]
        return ScoredRows([rows.tokens[i] for i in kept], [documents[i] for i in kept])

    def document_numbers(self) -> Int[np.ndarray, " documents"]:
        """The number of each chosen document in the whole held-out set."""
        return np.flatnonzero(self.numbers >= 0)

    def tokens_of_documents(self) -> Int[np.ndarray, " documents"]:
        """The number of scored tokens of each chosen document."""
        return self.whole.tokens_of_documents()[self.numbers >= 0]


@dataclass(frozen=True, kw_only=True)
class HeldOutText(HeldOut):
    """The held-out documents of prepared tokens."""

    windows: TokenWindows
    starts: Int[np.ndarray, " documents"]
    """The first token of each document."""

    def read(self, indices: Int[np.ndarray, " windows"]) -> ScoredRows:
        """The windows with these numbers; the last window of the split may be shorter."""
        tokens = [self.windows.row(int(index)) for index in indices]
        documents = [
            np.searchsorted(self.starts, index * self.context + np.arange(1, len(row)), "right") - 1
            for index, row in zip(indices, tokens, strict=True)
        ]
        return ScoredRows(tokens, documents)

    def tokens_of_documents(self) -> Int[np.ndarray, " documents"]:
        """Every token is scored but the first of the split."""
        ends = np.append(self.starts[1:], len(self.windows.tokens))
        tokens = ends - self.starts
        tokens[0] -= 1
        return tokens


@dataclass(frozen=True, kw_only=True)
class HeldOutTask(HeldOut):
    """The held-out sequences of a synthetic task."""

    task: Task

    def read(self, indices: Int[np.ndarray, " windows"]) -> ScoredRows:
        """Whole sequences; a sequence is the document of its answers."""
        tokens = self.task.sequences(indices).tokens
        documents = np.full((len(indices), self.context), -1, dtype=np.int64)
        documents[:, self.task.answer_positions() - 1] = indices[:, None]
        return ScoredRows(list(tokens), list(documents))

    def tokens_of_documents(self) -> Int[np.ndarray, " documents"]:
        """The answers of each sequence."""
        return np.full(self.num_documents, len(self.task.answer_positions()))


def held_out_text(split: TokenSplit, tokenizer: Tokenizer, *, context: int) -> HeldOutText:
    """Verify the held-out files of prepared tokens, and cut them into windows."""
    if context < 1:
        raise ValueError(f"context must be at least 1, got {context}")
    verify_split(split.folder, split.manifest, "held_out", bos_id=tokenizer.bos_id)
    starts = split.document_starts()
    if len(split) < 2:
        raise ValueError(
            f"{split.folder}: {len(split)} held-out tokens, and none is predicted from another; "
            "prepare data that holds out more"
        )
    ends = np.append(starts[1:], len(split))
    decoded = np.array(
        [
            len(tokenizer.decode(split.read(int(start), int(end)).tolist()).encode())
            for start, end in zip(starts, ends, strict=True)
        ]
    )
    if not decoded.any():
        raise ValueError(f"{split.folder}: its held-out documents hold no text")
    # Decoding may give other characters than the text had, so sizes are scaled to the text's sum.
    sizes = decoded * (sum(shard.text_bytes for shard in split.shards) / decoded.sum())
    windows = TokenWindows(split, min(context, len(split) - 1))
    return HeldOutText(
        context=windows.context,
        num_windows=windows.num_with_shorter,
        num_documents=len(starts),
        num_tokens=len(split) - 1,
        text_bytes=sizes,
        windows=windows,
        starts=starts,
    )


def held_out_task(task: Task) -> HeldOutTask:
    """The held-out split of a synthetic task."""
    return HeldOutTask(
        context=task.context,
        num_windows=task.num_windows,
        num_documents=task.num_windows,
        num_tokens=task.num_windows * len(task.answer_positions()),
        text_bytes=None,
        task=task,
    )
