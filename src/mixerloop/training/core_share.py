"""How many threads to compute with while other programs use the machine.

A thread that shares a core with another busy program makes all other threads wait at every barrier.
A run therefore uses one thread for each free core, and more threads when more cores become free.
"""

import os
import time
from collections.abc import Callable

import torch

from mixerloop import machine
from mixerloop.data.batches import Batch
from mixerloop.training.parallel import ParallelLoss
from mixerloop.training.step import Computation, accumulate

LOOK_SECONDS = 0.5


class CoreShare:
    """Sets torch's number of threads to the number of free cores, if `follows` is true."""

    def __init__(self, *, follows: bool) -> None:
        self.most = torch.get_num_threads()
        self._follows = follows and self.most > 1
        self._neighbours, self._looked_at = machine.Neighbours(), time.monotonic()

    def follow(self) -> None:
        """Measure the load of other programs, at most twice a second, and set the threads."""
        now = time.monotonic()
        if not self._follows or now - self._looked_at < LOOK_SECONDS:
            return
        busy = self._neighbours.busy_cores()
        self._neighbours, self._looked_at = machine.Neighbours(), now
        if busy is not None:
            torch.set_num_threads(threads_beside(busy, self.most, machine.num_cores()))

    def __enter__(self) -> "CoreShare":
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the number of threads the caller had."""
        torch.set_num_threads(self.most)


def threads_beside(busy: float, most: int, cores: int) -> int:
    """One thread for each core that is not among the `busy`: at least one, at most `most`."""
    return max(1, min(most, round(cores - busy)))


def core_share(
    loss: ParallelLoss,
    computation: Computation,
    *,
    compiled: bool,
    read: Callable[[], Batch | None],
) -> CoreShare:
    """Threads that follow the free cores, where that cannot change the gradient.

    `read` reads the next batch, with which this is tried.
    """
    ranks = computation.ranks
    if (
        ranks.num_ranks > 1
        or ranks.device.type != "cpu"
        or compiled
        or torch.get_num_threads() == 1
        or machine.NUM_THREADS in os.environ
        or (computation.depths is not None and computation.depths.per_sequence)
    ):  # sequences of one depth are another number in every step, so another shape
        return CoreShare(follows=False)
    batch = read()
    return CoreShare(
        follows=batch is not None and same_bits_on_one_thread(loss, batch, computation)
    )


def same_bits_on_one_thread(loss: ParallelLoss, batch: Batch, computation: Computation) -> bool:
    """Whether the matrix library splits no sum between threads, for the shapes of this run."""
    size, num_threads = computation.micro_batch, torch.get_num_threads()
    starts = {0, (len(batch.inputs) - 1) // size * size}  # the last micro-batch may be smaller
    gradients = []
    for threads in (num_threads, 1):
        torch.set_num_threads(threads)
        loss.module.zero_grad()
        for start in starts:
            rows = slice(start, start + size)
            part = Batch(step=batch.step, inputs=batch.inputs[rows], labels=batch.labels[rows])
            accumulate(loss, part, computation)
        gradients.append([weight.grad for weight in loss.module.parameters()])
    torch.set_num_threads(num_threads)
    loss.module.zero_grad()
    return all(
        many is single is None or (many is not None and single is not None and many.equal(single))
        for many, single in zip(*gradients, strict=True)
    )
