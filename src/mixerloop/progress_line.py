"""Progress on stderr: a line that is overwritten on a terminal, or timed lines in a log.

Nothing here fails if stderr is closed, full, or a pipe whose reader has exited: that must not stop
the work.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOG_SECONDS = 30
LOG_SECONDS_VARIABLE = "MIXERLOOP_LOG_SECONDS"
"""Sets the seconds between two lines of progress in a log."""


def to_stderr(text: str) -> None:
    """Write text to stderr, if it can be written to."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115


def is_terminal() -> bool:
    """Whether stderr is a terminal, on which a line can be overwritten."""
    return sys.stderr is not None and sys.stderr.isatty()


class ProgressLine:
    """Writes progress to a terminal or a log."""

    def __init__(self) -> None:
        self._terminal = is_terminal()
        self._log_seconds = _log_seconds()
        self._shown_at = -self._log_seconds
        self._open = False

    def show(self, text: str) -> None:
        """Replace the line on a terminal; add a line to a log every `LOG_SECONDS`."""
        if self._terminal:
            to_stderr(f"\r\033[K{text}")
            self._open = True
        elif time.monotonic() - self._shown_at >= self._log_seconds:
            to_stderr(f"{text}\n")
            self._shown_at = time.monotonic()

    def say(self, text: str) -> None:
        """Write a line that later progress does not replace."""
        to_stderr(f"{text}\n")

    def close(self) -> None:
        """End the line on a terminal, so that later output starts on a new line."""
        if self._open:
            to_stderr("\n")
            self._open = False


def _log_seconds() -> float:
    chosen = os.environ.get(LOG_SECONDS_VARIABLE, str(LOG_SECONDS))
    try:
        seconds = float(chosen)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise ValueError(f"{LOG_SECONDS_VARIABLE}={chosen}: not a number of seconds")
    return seconds


def counting(line: ProgressLine, unit: str) -> Callable[[str, int, int], None]:
    """A callback that shows a name, the number of units that are done, and the total."""
    return lambda name, done, total: line.show(f"{name}: {done:,} of {total:,} {unit}")


def preparing_progress() -> Callable[[str, int, int], None]:
    """A callback for the preparation of data: a log gets a line for each kind of work."""
    terminal = is_terminal()
    last = ""

    def show(what: str, done: int, total: int) -> None:
        nonlocal last
        if terminal:
            end = "\n" if done == total else ""
            to_stderr(f"\r\033[K{what} {done}/{total}{end}")
        elif what != last:
            to_stderr(f"{what}\n")
        last = what

    return show


@contextmanager
def says_how_to_resume() -> Iterator[None]:
    """Tell a user who interrupts the work that the same command resumes it."""
    try:
        yield
    except KeyboardInterrupt:
        to_stderr("\nstopped; the same command goes on from here")
        raise


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as 1:02:03 or 2:03."""
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
