"""Run cells one after another in this process."""

from collections.abc import Sequence
from pathlib import Path

from mixerloop.parsing import one_line
from mixerloop.program import is_stopping
from mixerloop.studies.cells import run_cell
from mixerloop.studies.display import heading, say
from mixerloop.studies.table import Row


def run_in_turn(folder: Path, rows: Sequence[Row], *, of: int) -> list[str]:
    """Run some of a study's `of` cells; returns the names of those that failed.

    A cell that fails leaves its error in its record, and the next cell is run. A signal ends the
    cell, which is resumed when the study is started again, and is passed on to the caller.
    """
    failed = []
    for row in rows:
        at = heading(row, of)
        try:
            if not run_cell(folder, row, lambda text, at=at: say(at, text)):
                say(at, "another process has it")
        except (KeyboardInterrupt, SystemExit):
            say(at, "stopped; the same command goes on from here")
            raise
        except Exception as error:
            if is_stopping():
                raise
            say(at, f"failed: {one_line(error)}")
            failed.append(row.run)
    return failed
