"""Cells on a Ray cluster: Ray chooses their nodes, retries them and handles lost nodes.

A cell runs as `mixerloop study FILE --cells N` runs it, in its own process on a node that Ray
chooses. All nodes must share the study's folder. When a worker dies, the lock of its cell is
released. Ray starts the cell again on another worker, which resumes from the last checkpoint.
"""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from mixerloop.parsing import one_line
from mixerloop.studies.cell_process import row_text, start_cell
from mixerloop.studies.cells import is_done
from mixerloop.studies.table import Row

RETRIES = 3


def run_on_ray(
    folder: Path, rows: Sequence[Row], say: Callable[[str, str], None], *, of: int
) -> None:
    """Run some of a study's `of` cells and wait; the record of each cell says whether it failed."""
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ValueError("engine ray needs Ray: pip install 'mixerloop[ray]'") from None

    ray.init(ignore_reinit_error=True, log_to_driver=False)
    run = ray.remote(max_retries=RETRIES)(_run_cell)
    waiting = {
        run.options(num_cpus=row.cpus, num_gpus=row.gpus).remote(
            str(folder.resolve()), row.number, of, row_text(row), row.cpus
        ): row
        for row in rows
    }
    try:
        while waiting:
            (finished,), _ = ray.wait(list(waiting), num_returns=1)
            row = waiting.pop(finished)
            try:
                last_line = ray.get(finished)
                say(row.run, "done" if is_done(folder, row) else f"not done: {last_line}")
            except ray.exceptions.RayError as error:
                say(row.run, f"lost: {one_line(error)}")
    finally:
        ray.shutdown()


def _run_cell(folder: str, number: int, of: int, row: str, cpus: int) -> str:
    """On a worker, run a cell in a process that ends with the worker; returns its last line."""
    process = start_cell(folder, number, of, row, threads=cpus, stderr=subprocess.PIPE)
    _, stderr = process.communicate()
    lines = stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"
