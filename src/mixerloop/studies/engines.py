"""Cells on this machine: in turn in this process, or side by side in processes of their own.

Small models train faster side by side, on one core each, than one after another on all cores. A
process on one core is hardly slowed by its neighbours. A cell's numbers do not depend on how many
cells run at a time.
"""

import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mixerloop import machine
from mixerloop.model.accounting import account_model
from mixerloop.parsing import one_line
from mixerloop.program import is_stopping
from mixerloop.studies.cell_process import row_text, start_cell
from mixerloop.studies.cells import is_done, run_cell
from mixerloop.studies.display import heading, say
from mixerloop.studies.table import Row

RETRIES = 3
"""How often a cell is started again after its process was killed."""
POLL_SECONDS = 0.1
STOP_SECONDS = 60.0
"""How long a process may take to finish its step and save a checkpoint."""
BYTES_PER_PARAMETER = 20  # weight, gradient, two moments, and a copy while a checkpoint is written
PROCESS_BYTES = 600 * 2**20  # Python and torch, without a model
MEMORY_SHARE = 0.8  # of the memory that is free

Heard = Callable[[Row, str], None]
"""Called with every line that a cell's process prints."""


@dataclass
class _Worker:
    """A row, the process that runs it, and the thread that reads the process's stderr."""

    row: Row
    process: "subprocess.Popen[str]"
    reader: threading.Thread
    last_line: list[str]


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


def default_jobs(rows: Sequence[Row]) -> int:
    """The number of cells to run at a time: one per core if memory allows; one on GPUs."""
    if not rows or any(row.gpus for row in rows):
        return 1
    threads = machine.chosen_threads() or 1
    jobs = min(len(rows), max(1, machine.num_cores() // threads))
    free = machine.free_bytes()
    if free is not None:
        largest = max(expected_bytes(row) for row in rows)
        jobs = min(jobs, max(1, int(MEMORY_SHARE * free / largest)))
    return jobs


def threads_of_each(jobs: int) -> int:
    """Threads of each cell when `jobs` cells run at a time, unless the user chose a number."""
    return machine.chosen_threads() or max(1, machine.num_cores() // jobs)


def is_timed(row: Row) -> bool:
    """Whether a row's budget is in seconds, so that other running cells change its result."""
    _, train = row.with_config().for_training()
    return train.seconds is not None


def expected_bytes(row: Row) -> int:
    """An upper bound on a cell's memory in training: activations are counted for the torch form."""
    config = row.with_config()
    data, train = config.for_training()
    tokens = (train.micro_batch or train.global_batch) * (data.context or 1)
    per_token = account_model(config.model).activation_bytes(config.model.occurrences())
    return PROCESS_BYTES + BYTES_PER_PARAMETER * row.parameters + tokens * per_token


def run_side_by_side(
    folder: Path,
    rows: Sequence[Row],
    *,
    of: int,
    jobs: int,
    expected_seconds: Mapping[int, float],
    environment: Mapping[str, str],
    heard: Heard,
) -> list[str]:
    """Run some of a study's `of` cells, `jobs` at a time, the longest first.

    Returns the names of those that failed.
    """
    longest_first = sorted(rows, key=lambda row: -expected_seconds.get(row.number, 0.0))
    waiting = deque(longest_first)
    threads = threads_of_each(jobs)
    starts = dict.fromkeys((row.number for row in rows), 0)
    running: list[_Worker] = []
    failed = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                row = waiting.popleft()
                starts[row.number] += 1
                running.append(_start(folder, row, of, threads, environment, heard))
            time.sleep(POLL_SECONDS)
            for worker in [worker for worker in running if worker.process.poll() is not None]:
                running.remove(worker)
                worker.reader.join()
                row, code = worker.row, worker.process.returncode
                if is_done(folder, row):
                    heard(row, "done")
                elif code < 0 and starts[row.number] <= RETRIES:
                    heard(row, f"its process was killed ({_signal_name(-code)}); started again")
                    waiting.appendleft(row)
                else:
                    failed.append(row.run)
                    if code < 0:
                        heard(row, f"failed: its process was killed ({_signal_name(-code)})")
                    elif not worker.last_line[0].startswith("failed: "):
                        heard(row, f"failed: {worker.last_line[0] or f'exit code {code}'}")
    finally:
        _stop(running)
    return failed


def _start(
    folder: Path, row: Row, of: int, threads: int, environment: Mapping[str, str], heard: Heard
) -> _Worker:
    process = start_cell(
        str(folder.resolve()),
        row.number,
        of,
        row_text(row),
        threads=threads,
        stderr=subprocess.PIPE,
        environment=environment,
    )
    last_line = [""]
    own_heading = f"{row.run}: "

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            if text := line.strip().rpartition(own_heading)[2]:
                last_line[0] = text
                heard(row, text)

    reader = threading.Thread(target=read, name=row.run, daemon=True)
    reader.start()
    return _Worker(row, process, reader, last_line)


def _stop(workers: Sequence[_Worker]) -> None:
    """Ask processes to save a checkpoint and exit, and wait until they have.

    A process that does not exit in time is killed, such as one that was told to ignore SIGTERM. A
    kill loses the steps since the last checkpoint.
    """
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    for worker in workers:
        try:
            worker.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
        worker.reader.join()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
