"""`train` and `resume`: a training session, from a config or a run folder to a checkpoint."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mixerloop import machine, runs
from mixerloop.config import RunConfig, Tables
from mixerloop.files import locked, remove_folder, remove_leftovers
from mixerloop.history import restore_history
from mixerloop.ops.caller_modes import torch_defaults
from mixerloop.ops.gated_delta_rule import choose_form
from mixerloop.parsing import checked
from mixerloop.training.metrics import (
    JsonLines,
    Metrics,
    TensorBoard,
    Timing,
    Watcher,
    WeightsAndBiases,
)
from mixerloop.training.opened import Opened, open_run
from mixerloop.training.parallel import joined
from mixerloop.training.parent import Parent
from mixerloop.training.run_setup import (
    begin,
    note_data,
    note_session,
    provenance_of,
    resumed_config,
    settled,
)
from mixerloop.training.trainer import Outcome, Trainer

Display = Callable[[Trainer], Watcher]
"""A function that makes the watcher for a session's progress; called on the first rank."""
ENDS_OF_TRAINING = (ValueError, OSError, FloatingPointError)
"""What stops a run: its data, its disk, a number that is not finite. The run stays as it is.

After any other error before the first step, nothing of a new run is worth keeping.
"""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The result of a training session."""

    run: Path
    outcome: Outcome
    last: Metrics | None
    """The last step of this session; None if no step was left, and on ranks but the first."""
    is_first_rank: bool
    restored: tuple[str, ...] = ()
    """Files of the history that were not as the newest checkpoint has them, and were restored."""


@checked
@torch_defaults()
def train(
    config: RunConfig,
    run: Path | str,
    *,
    parent: Parent | None = None,
    until: int | None = None,
    display: Display | None = None,
) -> Trained:
    """Create a run in a new folder and train it, to the end of its budget or to step `until`.

    The run starts from the weights of `parent`, as far as the parent has them, and from fresh
    weights otherwise. If the data is missing and `data.prepare` says how it is made, it is prepared
    first.
    """
    _check_until(until)
    run = Path(run)
    _, settings = config.for_training()
    machine.keep_freed_memory()
    with joined(settings.device) as ranks:
        config = settled(config, ranks=ranks)
        opened = None
        if ranks.is_first:
            opened = begin(run, config, ranks=ranks, parent=parent, quiet=display is None)
        ranks.wait()  # until the first rank has made the folder
        if opened is None:
            opened = open_run(config, ranks=ranks)
        return _session(run, opened, until, display, is_new=True)


@checked
@torch_defaults()
def resume(
    run: Path | str,
    *,
    config_file: Path | str | None = None,
    overrides: Tables | None = None,
    until: int | None = None,
    display: Display | None = None,
) -> Trained:
    """Resume a run from its newest checkpoint.

    `config_file` and `overrides` may change how the run is computed, but not what it computes.
    """
    _check_until(until)
    run = Path(run)
    if (run / runs.CONTENTS).exists():
        raise ValueError(f"{run}: not a run; of a checkpoint, name the run it belongs to")
    if not run.is_dir():
        raise ValueError(f"{run}: there is no such run")
    if not (run / runs.CONFIG).is_file():
        raise ValueError(f"{run / runs.CONFIG}: missing, so this is not a run that can be resumed")
    config = resumed_config(run, config_file=config_file, overrides=overrides or {})
    _, settings = config.for_training()
    machine.keep_freed_memory()
    with joined(settings.device) as ranks:
        choose_form(settings.form, ranks.device.type)  # rejects a form this device cannot run
        return _session(run, open_run(config, ranks=ranks), until, display)


def _check_until(until: int | None) -> None:
    if until is not None and until < 1:
        raise ValueError(f"until must be at least 1, got {until}")


def _session(
    run: Path,
    opened: Opened,
    until: int | None,
    display: Display | None,
    *,
    is_new: bool = False,
) -> Trained:
    if not opened.ranks.is_first:
        outcome = Trainer(run, opened).train(until=until)
        return Trained(run=run, outcome=outcome, last=None, is_first_rank=False)
    last = _Last()
    with locked(run):
        remove_leftovers(run)
        remove_leftovers(run / runs.CHECKPOINTS)
        try:
            trainer, outcome = _watched(run, opened, until, display, last)
        except Exception as error:
            nothing_is_made = last.metrics is None and not isinstance(error, ENDS_OF_TRAINING)
            if is_new and (nothing_is_made or not last.trains):
                remove_folder(run)  # so that the call can be made again
            raise
    return Trained(
        run=run,
        outcome=outcome,
        last=last.metrics,
        is_first_rank=True,
        restored=tuple(trainer.restored),
    )


def _watched(
    run: Path,
    opened: Opened,
    until: int | None,
    display: Display | None,
    last: "_Last",
) -> tuple[Trainer, Outcome]:
    """Train with all watchers, `last` among them."""
    trainer = Trainer(run, opened)
    trainer.restored = restore_history(run, trainer.newest, trainer.step)
    watchers: list[Watcher] = [last]
    try:
        if not trainer.finished:
            watchers += _recorders(run, trainer)
        if not trainer.finished or trainer.began_unchecked:
            provenance = note_session(run, trainer.config, ranks=opened.ranks, step=trainer.step)
            watchers.append(_DataNote(trainer, provenance))
        if not trainer.finished and display is not None:
            watchers.append(display(trainer))
        last.trains = True
        return trainer, trainer.train(watchers, until=until)
    finally:
        for watcher in watchers:
            watcher.close()


def _recorders(run: Path, trainer: Trainer) -> list[Watcher]:
    """The watchers that record steps in files and services, as the config says."""
    settings = trainer.train_config
    recorders: list[Watcher] = [JsonLines(run)]
    if settings.tensorboard:
        recorders.append(TensorBoard(run, start=trainer.step))
    if settings.wandb is not None:
        identity = str(provenance_of(run)["id"])
        facts = asdict(trainer.config)
        recorders.append(
            WeightsAndBiases(run, project=settings.wandb, identity=identity, config=facts)
        )
    return recorders


class _Last:
    """A watcher that stores how far a session has come: the metrics of the last step."""

    trains = False
    """Whether the session is ready to make steps."""
    metrics: Metrics | None = None

    def step(self, metrics: Metrics, timing: Timing) -> None:
        self.metrics = metrics

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class _DataNote:
    """A watcher that records in the provenance what data was read, once all of it is checked.

    It does not read the provenance again: a damaged file must not keep a checkpoint from being
    written.
    """

    def __init__(self, trainer: Trainer, provenance: dict[str, Any]) -> None:
        self._trainer, self._is_noted = trainer, False
        self._provenance = provenance

    def step(self, metrics: Metrics, timing: Timing) -> None:
        pass

    def flush(self) -> None:
        data = self._trainer.data
        if not self._is_noted and data is not None and data.check.is_complete:
            note_data(self._trainer.run, self._provenance, data.check)
            self._is_noted = True

    def close(self) -> None:
        if self._trainer.run.is_dir():  # a run can be removed while it is trained
            self.flush()
