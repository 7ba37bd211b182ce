"""Batches: the windows a step trains on, as a function of seed and step alone.

Sample j of step s is window `order(s * global_batch + j)`, where the order is a permutation of all
windows that changes every epoch. It does not depend on the number of ranks, the size of a
micro-batch or restarts. The position of a run in its data is its step.
"""

import queue
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from mixerloop.data.order import Permutation
from mixerloop.data.windows import Windows

PREFETCHED_BATCHES = 4
T = TypeVar("T")
WINDOWS_AT_ONCE = 1024  # a batch may have millions, and a signal must end the reading of them
WAIT_SECONDS = 0.1
Stopped = Callable[[], bool]
"""A function that is asked whether to stop."""


def _never() -> bool:
    return False


def _taken(ready: "queue.Queue[T]") -> T | None:
    """The next item, or None if there is none after a moment."""
    try:
        return ready.get(timeout=WAIT_SECONDS)
    except queue.Empty:
        return None


@dataclass(frozen=True)
class Batch:
    """The part of a step's batch that one rank trains on."""

    step: int
    inputs: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The batches of a run, and the part of each batch that one rank reads."""

    windows: Windows
    seed: int
    global_batch: int
    rank: int = 0
    num_ranks: int = 1

    def __post_init__(self) -> None:
        """Reject a batch that does not divide among the ranks."""
        if self.global_batch < 1 or self.global_batch % self.num_ranks:
            raise ValueError(
                f"a batch of {self.global_batch} does not divide among {self.num_ranks} ranks"
            )
        if not 0 <= self.rank < self.num_ranks:
            raise ValueError(f"rank {self.rank} of {self.num_ranks}")

    def window_indices(self, step: int, *, stopped: Stopped = _never) -> np.ndarray:
        """The windows of a step's global batch, in order."""
        if step < 0:
            raise ValueError(f"step must be 0 or more, got {step}")
        size = self.windows.num_windows
        samples = np.arange(self.global_batch) + step * self.global_batch
        epochs = samples // size
        indices = np.empty(self.global_batch, dtype=np.int64)
        for epoch in np.unique(epochs):
            if stopped():
                break
            in_epoch = epochs == epoch
            order = Permutation(size, seed=self.seed, epoch=int(epoch))
            indices[in_epoch] = order(samples[in_epoch] % size)
        return indices

    def said(self, step: int) -> str:
        """A step's batch in an error."""
        size, windows = self.global_batch, self.window_indices(step)
        shown = f"{', '.join(map(str, windows[:4]))}{', ...' if size > 4 else ''}"
        first, last = step * size, (step + 1) * size - 1
        return f"samples {first:,} to {last:,} of the order, windows {shown}"

    def read(self, step: int) -> Batch:
        """The part of a step's batch that this rank trains on."""
        batch = self.read_unless(_never, step)
        assert batch is not None
        return batch

    def read_unless(self, stopped: Stopped, step: int) -> Batch | None:
        """The part of a step's batch that this rank trains on; None once `stopped` is true."""
        share = self.global_batch // self.num_ranks
        mine = self.window_indices(step, stopped=stopped)
        mine = mine[self.rank * share : (self.rank + 1) * share]
        parts = []
        for start in range(0, share, WINDOWS_AT_ONCE):
            if stopped():
                return None
            parts.append(self.windows.read(mine[start : start + WINDOWS_AT_ONCE]))
        if len(parts) == 1:
            return Batch(step, *parts[0])
        inputs, labels = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return Batch(step, inputs, labels)

    def prefetched(self, *, start: int, stop: int, stopped: Stopped = _never) -> Generator[Batch]:
        """The batches of these steps, read ahead in the background until the iterator is closed.

        The iterator ends early once `stopped` is true, even while a batch is being read.
        """
        ready: queue.Queue[Batch | BaseException] = queue.Queue(PREFETCHED_BATCHES)
        closed = threading.Event()

        def fill() -> None:
            for step in range(start, stop):
                try:
                    item: Batch | BaseException | None = self.read_unless(closed.is_set, step)
                except BaseException as error:  # raised again in the thread that reads the queue
                    item = error
                while item is not None and not closed.is_set():
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
                while (item := _taken(ready)) is None:
                    if stopped():
                        return
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            closed.set()
            reader.join()
