"""The signals that ask a training session to stop.

The first signal ends the session after its step, or before the next micro-batch, and the run is
saved. A second Ctrl-C interrupts a micro-batch or the wait for data; then the last whole step is
saved. Nothing interrupts an update, the record of a step or a checkpoint.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from mixerloop import start


class Signals:
    """The signals that a session has received; true once there is one."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._may_interrupt = False

    def __bool__(self) -> bool:
        """Whether the session is asked to stop."""
        return bool(self._numbers)

    @property
    def first(self) -> int | None:
        """The first signal; None if there was none."""
        return self._numbers[0] if self._numbers else None

    @contextmanager
    def may_interrupt(self) -> Iterator[None]:
        """Let a second Ctrl-C raise KeyboardInterrupt inside the block."""
        self._may_interrupt = True
        try:
            yield
        finally:
            self._may_interrupt = False

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Take a signal, as a handler.

        Under `torchrun` nothing is interrupted: the terminal sends Ctrl-C to every process, and
        torchrun then sends it to its processes again.
        """
        is_second = bool(self._numbers)
        self._numbers.append(number)
        if (
            is_second
            and number == signal.SIGINT
            and self._may_interrupt
            and not torch.distributed.is_initialized()
        ):
            raise KeyboardInterrupt


@contextmanager
def signals() -> Iterator[Signals]:
    """Collect the signals that stop a process inside the block, except those it has to ignore.

    Only the main thread receives signals; in any other thread none arrives.
    """
    received = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    old = {number: signal.signal(number, received.receive) for number in start.heard()}
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
