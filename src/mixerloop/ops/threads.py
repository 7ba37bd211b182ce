"""As many threads as a piece of work is worth."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

MACS_PER_THREAD = 32e6
"""Multiply-adds; with fewer, threads wait for each other longer than they work."""


@contextmanager
def worthwhile_threads(macs: float) -> Iterator[None]:
    """Compute inside with no more threads than a single pass over `macs` multiply-adds is worth."""
    most = torch.get_num_threads()
    wanted = max(1, min(most, int(macs / MACS_PER_THREAD)))
    if wanted == most:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(most)
