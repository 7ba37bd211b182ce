"""Cells on a Ray cluster: Ray chooses their nodes, retries them and handles lost nodes.

A cell runs as `mixerloop study FILE --cells N` runs it, in its own process on a node that Ray
chooses. All nodes must share the study's folder. When a worker dies, the lock of its cell is
released. Ray starts the cell again on another worker, which resumes from the last checkpoint.
"""

import subprocess
from collections.abc import Callable, Sequence

from mixerloop.parsing import one_line
from mixerloop.studies.cell_process import start_cell
from mixerloop.studies.cells import is_done
from mixerloop.studies.plan import Cell, Plan

RETRIES = 3


def run_on_ray(plan: Plan, cells: Sequence[Cell], say: Callable[[str, str], None]) -> None:
    """Run cells and wait for all of them; the record of each cell says whether it failed."""
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ValueError("engine ray needs Ray: pip install 'mixerloop[ray]'") from None

    ray.init(ignore_reinit_error=True, log_to_driver=False)
    run = ray.remote(max_retries=RETRIES)(_run_cell)
    study, folder = str(plan.file.path.resolve()), str(plan.folder.resolve())
    parent = None if plan.parent is None else str(plan.parent.resolve())
    waiting = {
        run.options(num_cpus=cell.cpus, num_gpus=cell.gpus).remote(
            study, folder, cell.number, cell.cpus, parent
        ): cell
        for cell in cells
    }
    try:
        while waiting:
            (finished,), _ = ray.wait(list(waiting), num_returns=1)
            cell = waiting.pop(finished)
            try:
                last_line = ray.get(finished)
                say(cell.name, "done" if is_done(plan, cell) else f"not done: {last_line}")
            except ray.exceptions.RayError as error:
                say(cell.name, f"lost: {one_line(error)}")
    finally:
        ray.shutdown()


def _run_cell(study: str, folder: str, number: int, cpus: int, parent: str | None) -> str:
    """On a worker, run a cell in a process that ends with the worker; returns its last line."""
    process = start_cell(study, folder, number, parent=parent, threads=cpus, stderr=subprocess.PIPE)
    _, stderr = process.communicate()
    lines = stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"
