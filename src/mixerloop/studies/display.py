"""The progress of cells on stderr: a line for each running cell on a terminal, a log elsewhere."""

import re
import threading
import time
from typing import TYPE_CHECKING

from mixerloop.messages import printable
from mixerloop.progress_line import LOG_SECONDS, is_terminal, to_stderr

if TYPE_CHECKING:
    from rich.live import Live

    from mixerloop.studies.table import Row

PROGRESS = re.compile(r"step \d|.*\d of \d")
"""Lines of progress, of which a log shows one every `LOG_SECONDS`."""


def say(where: str, text: str) -> None:
    """Print a line on stderr that later progress does not overwrite."""
    to_stderr(f"{where}: {text}\n")


def heading(row: "Row", num_cells: int) -> str:
    """The number and the name of a cell, at the start of its lines."""
    return f"[{row.number}/{num_cells}] {row.run}"


class CellLines:
    """Shows the newest line of each running cell; called from several threads."""

    def __init__(self, num_cells: int) -> None:
        self._num_cells = num_cells
        self._lock = threading.Lock()
        self._newest: dict[str, str] = {}
        self._logged_at: dict[str, float] = {}
        self._live: Live | None = None

    def __enter__(self) -> "CellLines":
        if is_terminal():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True, highlight=False), refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def heard(self, row: "Row", text: str) -> None:
        """Show a line that the process of a cell printed."""
        at, text = printable(heading(row, self._num_cells)), printable(text)
        with self._lock:
            if self._live is None:
                self._log(at, text)
                return
            self._newest.pop(at, None)
            if text == "done" or text.startswith(("failed", "stopped")):
                self._live.console.print(f"{at}: {text}", markup=False)
            else:
                self._newest[at] = text
            self._live.update("\n".join(f"{where}: {line}" for where, line in self._newest.items()))

    def _log(self, at: str, text: str) -> None:
        """Log a line of progress every `LOG_SECONDS`, and every other line at once."""
        now = time.monotonic()
        if PROGRESS.match(text):
            if now - self._logged_at.get(at, now - LOG_SECONDS) < LOG_SECONDS:
                return
            self._logged_at[at] = now
        say(at, text)
