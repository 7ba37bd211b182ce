"""A cell in its own process: `python -m mixerloop.studies.cell_process STUDY FOLDER NUMBER`.

A fourth argument is the run that stands for {parent} in the study file.

On Linux the process ends when its parent process ends, which releases the lock of its cell. On
other systems the process finishes its cell, and the lock keeps other processes away from the cell
until then. The parent process has planned the study and prepared its data.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from mixerloop import machine
from mixerloop.plugins import load_plugins
from mixerloop.program import run_program

COMMAND = (sys.executable, "-P", "-m", "mixerloop.studies.cell_process")
"""With -P, modules in the current folder are not imported."""


def start_cell(
    study: str,
    folder: str,
    number: int,
    *,
    parent: str | None,
    threads: int,
    stderr: int | IO[Any],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> "subprocess.Popen[str]":
    """Start a cell; its progress goes to `stderr`, everything else to its files.

    `parent` is the run that stands for {parent} in the study file.
    """
    own = {machine.NUM_THREADS: str(threads), machine.PARENT: str(os.getpid())}
    return subprocess.Popen(
        [*COMMAND, study, folder, str(number), *([] if parent is None else [parent])],
        env={**os.environ, **environment, **own},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        text=True,
        errors="replace",
    )


def _run_cell() -> None:
    machine.settle()  # before torch is loaded
    load_plugins()
    from mixerloop.studies.cells import is_done
    from mixerloop.studies.in_turn import run_in_turn
    from mixerloop.studies.plan import make_plan
    from mixerloop.studies.study import read_study

    study, folder, number, *parent = sys.argv[1:]
    plan = make_plan(
        read_study(Path(study)), Path(folder), parent=Path(*parent) if parent else None
    )
    plan.check_unchanged()
    machine.keep_freed_memory()
    cell = plan.cells[int(number) - 1]
    if not is_done(plan, cell) and run_in_turn(plan, [cell]):
        sys.exit(1)


if __name__ == "__main__":
    run_program(_run_cell)
