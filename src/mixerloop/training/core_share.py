"""How many threads to compute with, beside other programs.

Threads that share a core with a busy neighbour keep all others waiting at every barrier. A run uses
as many as the neighbours leave cores free, and takes the rest back when the neighbours are gone.
"""

import time

import torch

from mixerloop import machine

LOOK_SECONDS = 0.5


class CoreShare:
    """Sets the number of torch's threads to that of the cores others leave free, if it may."""

    def __init__(self, *, follows: bool) -> None:
        self.most = torch.get_num_threads()
        self._follows = follows and self.most > 1
        self._neighbours, self._looked_at = machine.Neighbours(), time.monotonic()

    def follow(self) -> None:
        """Look at the neighbours, at most twice a second, and use what is free."""
        now = time.monotonic()
        if not self._follows or now - self._looked_at < LOOK_SECONDS:
            return
        busy = self._neighbours.busy_cores()
        self._neighbours, self._looked_at = machine.Neighbours(), now
        if busy is not None:
            torch.set_num_threads(threads_beside(busy, self.most, machine.num_cores()))

    def __enter__(self) -> "CoreShare":
        """Begin to follow."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the caller its threads back."""
        torch.set_num_threads(self.most)


def threads_beside(busy: float, most: int, cores: int) -> int:
    """Threads for cores of which others keep `busy` busy: at least one, at most `most`."""
    return max(1, min(most, round(cores - busy)))
