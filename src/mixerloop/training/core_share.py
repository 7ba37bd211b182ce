"""How many threads to compute with while other programs use the machine.

A thread that shares a core with another busy program makes all other threads wait at every barrier.
A run therefore uses one thread for each free core, and more threads when more cores become free.
"""

import time

import torch

from mixerloop import machine

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
