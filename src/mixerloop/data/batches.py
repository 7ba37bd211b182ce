"""Batches: the windows a step trains on, as a function of seed and step alone.

Sample j of step s is window `order(s * global_batch + j)`, where the order is a permutation of all
windows that changes every epoch. It does not depend on the number of ranks, the size of a
micro-batch or restarts. The position of a run in its data is its step.
"""

import queue
import threading
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from mixerloop.data.order import Permutation
from mixerloop.data.windows import Windows

PREFETCHED_BATCHES = 4


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

    def window_indices(self, step: int) -> np.ndarray:
        """The windows of a step's global batch, in order."""
        if step < 0:
            raise ValueError(f"step must be 0 or more, got {step}")
        size = self.windows.num_windows
        samples = np.arange(self.global_batch) + step * self.global_batch
        epochs = samples // size
        indices = np.empty(self.global_batch, dtype=np.int64)
        for epoch in np.unique(epochs):
            in_epoch = epochs == epoch
            order = Permutation(size, seed=self.seed, epoch=int(epoch))
            indices[in_epoch] = order(samples[in_epoch] % size)
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
                except BaseException as error:  # raised again in the thread that reads the queue
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
