"""What cells that run side by side say: a line for each on a terminal, a log elsewhere."""

import re
import sys
import threading
import time
from typing import TYPE_CHECKING

from mixerloop.progress_line import LOG_SECONDS

if TYPE_CHECKING:
    from rich.live import Live

    from mixerloop.studies.plan import Cell

PROGRESS = re.compile(r"step \d|.*\d of \d")
"""A line that the next one of its kind replaces."""


class CellLines:
    """Hears of cells from several threads, and shows the newest line of each that is running."""

    def __init__(self, num_cells: int) -> None:
        self._num_cells = num_cells
        self._lock = threading.Lock()
        self._newest: dict[str, str] = {}
        self._logged_at: dict[str, float] = {}
        self._live: Live | None = None

    def __enter__(self) -> "CellLines":
        """Begin to show."""
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True, highlight=False), refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the last lines."""
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def heard(self, cell: "Cell", text: str) -> None:
        """A cell says something."""
        heading = f"[{cell.number}/{self._num_cells}] {cell.name}"
        with self._lock:
            if self._live is None:
                self._log(heading, text)
                return
            self._newest.pop(heading, None)
            if text == "done" or text.startswith(("failed", "stopped")):
                self._live.console.print(f"{heading}: {text}", markup=False)
            else:
                self._newest[heading] = text
            self._live.update("\n".join(f"{at}: {said}" for at, said in self._newest.items()))

    def _log(self, heading: str, text: str) -> None:
        """Progress now and then, everything else at once."""
        now = time.monotonic()
        if PROGRESS.match(text):
            if now - self._logged_at.get(heading, now - LOG_SECONDS) < LOG_SECONDS:
                return
            self._logged_at[heading] = now
        print(f"{heading}: {text}", file=sys.stderr, flush=True)
