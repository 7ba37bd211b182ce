"""Cells on a Ray cluster: placement, retries and lost nodes are Ray's work.

A cell is what `mixerloop study FILE --cells N` does, in a process of its own on whatever node Ray
picks. The study's folder must be one that all nodes share. A worker that dies takes its cell's lock
with it, and Ray starts the cell again elsewhere, where it goes on from its last checkpoint.
"""

import subprocess
from collections.abc import Callable, Sequence

from mixerloop.parsing import one_line
from mixerloop.studies.cell_process import start_cell
from mixerloop.studies.cells import is_done
from mixerloop.studies.plan import Cell, Plan

RETRIES = 3


def run_on_ray(plan: Plan, cells: Sequence[Cell], say: Callable[[str, str], None]) -> None:
    """Run cells and wait for all; which of them failed is in their records."""
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ValueError("engine ray needs Ray: pip install 'mixerloop[ray]'") from None

    ray.init(ignore_reinit_error=True, log_to_driver=False)
    run = ray.remote(max_retries=RETRIES)(_run_cell)
    study, folder = str(plan.file.path.resolve()), str(plan.folder.resolve())
    waiting = {
        run.options(num_cpus=cell.cpus, num_gpus=cell.gpus).remote(
            study, folder, cell.number, cell.cpus
        ): cell
        for cell in cells
    }
    try:
        while waiting:
            (one,), _ = ray.wait(list(waiting), num_returns=1)
            cell = waiting.pop(one)
            try:
                said = ray.get(one)
                say(cell.name, "done" if is_done(plan, cell) else f"not done: {said}")
            except ray.exceptions.RayError as error:
                say(cell.name, f"lost: {one_line(error)}")
    finally:
        ray.shutdown()


def _run_cell(study: str, folder: str, number: int, cpus: int) -> str:
    """On a worker: a process that ends when the worker does; returns its last words."""
    process = start_cell(study, folder, number, threads=cpus, stderr=subprocess.PIPE)
    _, said = process.communicate()
    lines = said.strip().splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"
