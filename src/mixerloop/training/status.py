"""The state of a run, read from its files alone."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.files import is_locked, is_there
from mixerloop.history import last_record, read_history
from mixerloop.parent_record import read_parent
from mixerloop.parsing import checked
from mixerloop.training.position import POSITION, read_position

State = Literal["running", "finished", "stopped", "fresh", "damaged"]
"""A `stopped` run can be resumed. A `fresh` run has weights and no training."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """The state and the last metrics of a run."""

    run: str
    state: State
    schedule: str | None = None
    step: int | None = None
    """Step of the newest metrics; the newest checkpoint may be older."""
    total_steps: int | None = None
    checkpoint_step: int | None = None
    loss: float | None = None
    held_out_nll: float | None = None
    tokens_per_second: float | None = None
    seconds: float | None = None
    """Time spent training until the newest checkpoint."""
    parent: str | None = None
    """The folder whose weights the run started from; None for fresh weights."""
    problem: str | None = None


@checked
def list_runs(folder: Path | str = runs.RUNS) -> list[Status]:
    """The status of every run in a folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    return [status(run) for run in find_runs(folder)]


def find_runs(folder: Path) -> Iterator[Path]:
    """The run folders below a folder, at any depth, sorted by name.

    Two of the three things that every run has make a run, so that a damaged run is listed too.
    """
    for path, folders, files in os.walk(folder):
        if len({runs.CONFIG, runs.PROVENANCE, runs.CHECKPOINTS} & {*files, *folders}) > 1:
            folders.clear()
            yield Path(path)
        else:
            folders[:] = sorted(name for name in folders if not name.startswith("."))


def status(run: Path) -> Status:
    """Read the status of a run; a run that cannot be read is `damaged`, with the problem."""
    before = runs.checkpoints(run).keys()
    try:
        return _status(run)
    except (ValueError, OSError) as error:
        if runs.checkpoints(run).keys() != before:  # training has removed an old one meanwhile
            return status(run)
        return Status(run=str(run), state="damaged", problem=str(error))


def _data_is_noted(run: Path) -> bool:
    """Whether the newest session has checked its data, after its last checkpoint was written."""
    sessions = runs.read_provenance(run).get("sessions")
    return bool(sessions) and "data" in sessions[-1]


def _status(run: Path) -> Status:
    schedule = configs.load(run / runs.CONFIG).model.schedule
    checkpoints = runs.checkpoints(run)
    if not checkpoints:
        raise ValueError(f"{run}: no checkpoints")
    checkpoint_step = max(checkpoints)
    folder = checkpoints[checkpoint_step]
    if not is_there(folder / POSITION):
        return Status(run=str(run), state="fresh", schedule=schedule, checkpoint_step=0)
    position = read_position(folder)
    parent = read_parent(folder)
    metrics, timing = (read_history(run, name) for name in (runs.METRICS, runs.TIMING))
    last = last_record(metrics)
    is_finished = position.finished and (position.data_checked or _data_is_noted(run))
    state: State = "finished" if is_finished else "stopped"
    return Status(
        run=str(run),
        state="running" if is_locked(run) else state,
        schedule=schedule,
        step=last.get("step", position.step),
        total_steps=position.total_steps,
        checkpoint_step=checkpoint_step,
        loss=last.get("loss"),
        held_out_nll=last_record(metrics, having="held_out_nll").get("held_out_nll"),
        tokens_per_second=last_record(timing).get("tokens_per_second"),
        seconds=position.seconds,
        parent=None if parent is None else parent.folder,
    )
