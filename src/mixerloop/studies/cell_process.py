"""A cell in its own process: `python -m mixerloop.studies.cell_process FOLDER NUMBER OF`.

The row of the cell comes as JSON on stdin: the study is not planned again. NUMBER and OF show in
the list of processes and in messages.

On Linux the process ends when its parent process ends, which releases the lock of its cell. On
other systems the process finishes its cell, and the lock keeps other processes away from the cell
until then. The parent process has planned the study and prepared its data.
"""

import contextlib
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any

from mixerloop import machine
from mixerloop.plugins import load_plugins
from mixerloop.program import run_program

if TYPE_CHECKING:
    from mixerloop.studies.table import Row

COMMAND = (sys.executable, "-P", "-m", "mixerloop.studies.cell_process")
"""With -P, modules in the current folder are not imported."""


def row_text(row: "Row") -> str:
    """What a cell's process needs to know of its row, as JSON; it may run in another folder."""
    from mixerloop.config import dump

    config = row.with_config()
    if config.data is not None:
        path = str(Path(config.data.path).resolve())
        config = replace(config, data=replace(config.data, path=path))
    return json.dumps({**row.planned(), "config": dump(config)})


def row_from(text: str) -> "Row":
    """The row that `row_text` wrote."""
    from mixerloop.config import run_config
    from mixerloop.studies.table import Row

    try:
        planned = json.loads(text)
        config = run_config(tomllib.loads(planned.pop("config")))
        return replace(Row.from_table(planned), config=config)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"stdin: not the row of a cell: {error}") from None


def start_cell(
    folder: str,
    number: int,
    of: int,
    row: str,
    *,
    threads: int,
    stderr: int | IO[Any],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> "subprocess.Popen[str]":
    """Start a cell; its progress goes to `stderr`, everything else to its files.

    `row` is the text of its row, and `of` the number of cells of the study.
    """
    own = {machine.NUM_THREADS: str(threads), machine.PARENT: str(os.getpid())}
    process = subprocess.Popen(
        [*COMMAND, folder, str(number), str(of)],
        env={**os.environ, **environment, **own},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        text=True,
        errors="replace",
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:  # it says what went wrong
        stdin.write(row)
    process.stdin = None
    return process


def _run_cell() -> None:
    machine.settle()  # before torch is loaded
    load_plugins()
    row = row_from(sys.stdin.read())
    from mixerloop.studies.cells import is_done
    from mixerloop.studies.engines import run_in_turn

    folder, _, of = sys.argv[1:]
    machine.keep_freed_memory()
    if not is_done(Path(folder), row) and run_in_turn(Path(folder), [row], of=int(of)):
        sys.exit(1)


if __name__ == "__main__":
    run_program(_run_cell)
