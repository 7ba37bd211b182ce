"""Progress on stderr: a bar that is redrawn on a terminal, or timed lines in a log.

Nothing here fails if stderr is closed, full, or a pipe whose reader has exited: that must not stop
the work.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mixerloop.messages import printable, shortened, shown

DRAWN_SECONDS = 0.1
"""A terminal is redrawn no more often than this."""
BAR, NARROW_BAR, NARROW_COLUMNS = 20, 8, 60
"""The columns of a bar; the narrow bar is for terminals with fewer columns than this."""
LOG_SECONDS = 30
LOG_SECONDS_VARIABLE = "MIXERLOOP_LOG_SECONDS"
"""Sets the seconds between two lines of progress in a log."""


def to_stderr(text: str) -> None:
    """Write text to stderr, if it can be written to; names in it move no cursor."""
    _write(shown(text))


def _write(text: str) -> None:
    try:
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115


def is_terminal() -> bool:
    """Whether stderr is a terminal on which a line can be redrawn."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class ProgressLine:
    """Writes progress to a terminal or a log."""

    _open: "ProgressLine | None" = None
    """The progress line on which the cursor of the terminal stands."""

    def __init__(self) -> None:
        self.is_terminal = is_terminal()
        self._log_seconds = _log_seconds()
        self._shown_at = -math.inf

    def show(self, *parts: str, share: float | None = None) -> None:
        """Redraw the line on a terminal; add a line to a log every `LOG_SECONDS`.

        A terminal shows a bar for the share of the work that is done. A narrow terminal shows the
        first part and the last, and as many of the others as fit.
        """
        now, parts = time.monotonic(), tuple(map(printable, parts))
        if self.is_terminal:
            if now - self._shown_at >= DRAWN_SECONDS or share == 1:
                _write(f"\r{_fitted(parts, share, _columns())}\033[K")
                ProgressLine._open = self
                self._shown_at = now
        elif now - self._shown_at >= self._log_seconds:
            to_stderr("  ".join(parts) + "\n")
            self._shown_at = now

    def say(self, text: str) -> None:
        """Write a line that later progress does not replace."""
        if ProgressLine._open is not None:
            _write("\r\033[K")
        to_stderr(f"{text}\n")
        ProgressLine._open = None

    def begin(self, text: str) -> None:
        """Start a kind of work: a log names it at once, and shows progress after `LOG_SECONDS`."""
        if self.is_terminal:
            self.show(text)
        else:
            self.say(text)
            self._shown_at = time.monotonic()

    def close(self) -> None:
        """End the line on a terminal, so that later output starts on a new line."""
        if ProgressLine._open is self:
            end_open_line()


def end_open_line() -> None:
    """End the progress line that a terminal shows, if it shows one."""
    if ProgressLine._open is not None:
        to_stderr("\n")
        ProgressLine._open = None


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):  # a stream without a descriptor
        return 80


def _fitted(parts: Sequence[str], share: float | None, columns: int) -> str:
    """A bar and as many parts as fit on a line that does not wrap."""
    room = columns - 1
    first, middle, last = parts[0], list(parts[1:-1]), parts[1:][-1:]
    percent = "" if share is None else f"{_share_text(share)}  "
    bar = "" if share is None else _bar(share, BAR if columns >= NARROW_COLUMNS else NARROW_BAR)
    while middle and len("  ".join([bar + percent + first, *middle, *last])) > room:
        middle.pop()
    whole = "  ".join([bar + percent + first, *middle, *last])
    if len(whole) > room:
        whole = "  ".join([percent + first, *last])
    return shortened(whole, most=room)


def _bar(share: float, cells: int) -> str:
    done = int(min(max(share, 0), 1) * cells)
    return f"{'━' * done}{'─' * (cells - done)} "


def _share_text(share: float) -> str:
    return f"{math.floor(100 * min(max(share, 0), 1)):3}%"


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
    """A callback that shows a name, the units that are done, the total, the rate and the rest."""
    name_now, done_before, began = "", 0, 0.0

    def show(name: str, done: int, total: int) -> None:
        nonlocal name_now, done_before, began
        now = time.monotonic()
        if name != name_now:
            name_now, done_before, began = name, done, now
        parts = [f"{name}: {done:,} of {total:,} {unit}"]
        if done > done_before and now > began:
            rate = (done - done_before) / (now - began)
            parts += [f"{_rate_text(rate)} {unit}/s", f"{duration((total - done) / rate)} left"]
        line.show(*parts, share=done / total if total else None)

    return show


def _rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def preparing_progress() -> Callable[[str, int, int], None]:
    """A callback for the preparation of data: a log gets a line for each kind of work, and more."""
    line = ProgressLine()
    count = counting(line, "parts")
    last = ""

    def show(what: str, done: int, total: int) -> None:
        nonlocal last
        if what != last:
            line.begin(what)
        if total > 1:
            count(what, done, total)
        if done == total:
            line.close()
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
