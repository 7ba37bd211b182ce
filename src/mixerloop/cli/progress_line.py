"""Progress for people: a line that is written over on a terminal, now and then a line in a log."""

import sys
import time

LOG_SECONDS = 30


class ProgressLine:
    """One line on stderr."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown_at = -LOG_SECONDS
        self._open = False

    def show(self, text: str) -> None:
        """Say how far it is; a log hears of it every half minute."""
        if self._terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
            self._open = True
        elif time.monotonic() - self._shown_at >= LOG_SECONDS:
            print(text, file=sys.stderr, flush=True)
            self._shown_at = time.monotonic()

    def close(self) -> None:
        """Leave the line."""
        if self._open:
            print(file=sys.stderr, flush=True)
            self._open = False


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as 1:02:03 or 2:03."""
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
