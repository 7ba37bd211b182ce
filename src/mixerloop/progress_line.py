"""Progress on stderr: a line that is overwritten on a terminal, or a line now and then in a log."""

import os
import sys
import time
from collections.abc import Callable

LOG_SECONDS = 30
LOG_SECONDS_VARIABLE = "MIXERLOOP_LOG_SECONDS"
"""Sets the seconds between two lines of progress in a log."""


class ProgressLine:
    """Writes progress to a terminal or a log, and stops writing when stderr is closed."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._readable = True
        self._log_seconds = float(os.environ.get(LOG_SECONDS_VARIABLE, LOG_SECONDS))
        self._shown_at = -self._log_seconds
        self._open = False

    def show(self, text: str) -> None:
        """Replace the line on a terminal; add a line to a log every `LOG_SECONDS`."""
        if self._terminal:
            self._write(f"\r\033[K{text}")
            self._open = True
        elif time.monotonic() - self._shown_at >= self._log_seconds:
            self._write(f"{text}\n")
            self._shown_at = time.monotonic()

    def say(self, text: str) -> None:
        """Write a line that later progress does not replace."""
        self._write(f"{text}\n")

    def close(self) -> None:
        """End the line on a terminal, so that later output starts on a new line."""
        if self._open:
            self._write("\n")
            self._open = False

    def _write(self, text: str) -> None:
        """Write, and write nothing more once the reader of stderr has closed the pipe."""
        if not self._readable:
            return
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            self._readable = False
            sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115


def counting(line: ProgressLine, unit: str) -> Callable[[str, int, int], None]:
    """A callback that shows a name and how many of its units are done, of how many."""
    return lambda name, done, total: line.show(f"{name}: {done:,} of {total:,} {unit}")


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as 1:02:03 or 2:03."""
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
