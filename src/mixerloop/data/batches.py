"""Batches: which windows a step trains on, as a function of seed and step and nothing else.

Sample j of step s is window `order(s * global_batch + j)`, where the order is a permutation of all
windows, another one each epoch. The number of ranks, the size of a micro-batch and restarts do not
enter, so they cannot change what is trained on. The position of a run is its step.
"""

import queue
import threading
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from mixerloop.data.hops import FORMAT as HOPS_FORMAT
from mixerloop.data.hops import Hops, HopsSettings
from mixerloop.data.order import Permutation
from mixerloop.data.shards import MANIFEST, TokenSplit
from mixerloop.data.sources import Split
from mixerloop.files import file_sha256, read_json
from mixerloop.parsing import from_dict

PREFETCHED_BATCHES = 4


class Windows(Protocol):
    """Fixed-length examples that can be read by number."""

    num_windows: int
    vocab_size: int
    context: int

    def read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of these windows, int64 [num, context] each."""
        ...


class TokenWindows:
    """A split cut into windows of `context` tokens, each labelled with the token after it.

    Every position has a label, so a window reads one token into the next.
    """

    def __init__(self, tokens: TokenSplit, context: int) -> None:
        if context < 1:
            raise ValueError(f"context must be at least 1, got {context}")
        self.tokens, self.context = tokens, context
        self.vocab_size = tokens.manifest.vocab_size
        self.num_windows = max(0, len(tokens) - 1) // context
        if self.num_windows == 0:
            raise ValueError(
                f"{tokens.folder}: {len(tokens):,} {tokens.split} tokens do not fill a window "
                f"of {context:,}"
            )

    def read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of these windows."""
        rows = np.empty((len(indices), self.context + 1), dtype=np.int64)
        for row, index in zip(rows, indices, strict=True):
            start = int(index) * self.context
            row[:] = self.tokens.read(start, start + self.context + 1)
        return rows[:, :-1], rows[:, 1:]


def open_windows(folder: Path, split: Split, context: int | None) -> Windows:
    """The windows of a prepared folder; a made task has a context of its own."""
    if (settings := hops_settings(folder)) is not None:
        hops = Hops(settings, split)
        if context not in (None, hops.context):
            raise ValueError(f"{folder}: its sequences have {hops.context} tokens, not {context}")
        return hops
    tokens = TokenSplit(folder, split)
    if context is None:
        raise ValueError(f"{folder}: tokens need a context to be cut into windows of")
    return TokenWindows(tokens, context)


def fingerprint(folder: Path) -> str:
    """The sha256 of a folder's manifest, which has those of everything else in it."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder}: no {MANIFEST}; prepare it with mixerloop data prepare")
    return file_sha256(path)


def hops_settings(folder: Path) -> HopsSettings | None:
    """The settings of a folder that stands for hops, or None for one that holds tokens."""
    path = folder / MANIFEST
    data = read_json(path) if path.is_file() else None
    if not isinstance(data, dict) or data.get("format") != HOPS_FORMAT:
        return None
    try:
        return from_dict(HopsSettings, data.get("settings", {}), "settings.")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


@dataclass(frozen=True)
class Batch:
    """One rank's part of one step's batch."""

    step: int
    inputs: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The batches of a run, as one rank sees them."""

    windows: Windows
    seed: int
    global_batch: int
    rank: int = 0
    num_ranks: int = 1

    def __post_init__(self) -> None:
        """Refuse a batch that does not divide."""
        if self.global_batch < 1 or self.global_batch % self.num_ranks:
            raise ValueError(
                f"a batch of {self.global_batch} does not divide among {self.num_ranks} ranks"
            )
        if not 0 <= self.rank < self.num_ranks:
            raise ValueError(f"rank {self.rank} of {self.num_ranks}")

    def window_indices(self, step: int) -> np.ndarray:
        """The windows of a step's global batch, in order."""
        if step < 0:
            raise ValueError(f"step must be 0 or more, got {step}")
        size = self.windows.num_windows
        samples = np.arange(self.global_batch) + step * self.global_batch
        epochs = samples // size
        indices = np.empty(self.global_batch, dtype=np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            order = Permutation(size, seed=self.seed, epoch=int(epoch))
            indices[here] = order(samples[here] % size)
        return indices

    def read(self, step: int) -> Batch:
        """The part of a step's batch that this rank trains on."""
        share = self.global_batch // self.num_ranks
        mine = self.window_indices(step)[self.rank * share : (self.rank + 1) * share]
        return Batch(step, *self.windows.read(mine))

    def prefetched(self, *, start: int, stop: int) -> Generator[Batch]:
        """The batches of these steps, read ahead in the background until the iterator is closed."""
        ready: queue.Queue[Batch | BaseException] = queue.Queue(PREFETCHED_BATCHES)
        closed = threading.Event()

        def fill() -> None:
            for step in range(start, stop):
                try:
                    item: Batch | BaseException = self.read(step)
                except BaseException as error:  # raised again where it is read
                    item = error
                while not closed.is_set():
                    try:
                        ready.put(item, timeout=0.1)
                        break
                    except queue.Full:
                        continue
                if closed.is_set() or isinstance(item, BaseException):
                    return

        reader = threading.Thread(target=fill, name="prefetch", daemon=True)
        reader.start()
        try:
            for _ in range(start, stop):
                item = ready.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            closed.set()
            reader.join()
