"""Read a run with its results, for a comparison."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.config import RunConfig
from mixerloop.evaluation.units import Units
from mixerloop.files import file_sha256, is_there, sealed_files
from mixerloop.measures import MEASURES, Measure, load
from mixerloop.parent_record import read_parent
from mixerloop.parsing import one_line
from mixerloop.result_files import check_details, command_for, is_measured, read_result
from mixerloop.results import Result


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One model, and the units of each of its results that can be compared."""

    path: Path
    checkpoint: str | None
    """Fingerprint of the weights that were measured."""
    schedule: str
    """The schedule that was measured."""
    seed: int | None
    config: RunConfig | None
    """None for results in a folder outside a run."""
    trained_on: str | None
    """Fingerprint of the training data."""
    step: str | None
    """The checkpoint's name."""
    parent: str | None = None
    """Fingerprint of the weights that the run began with; None for fresh weights."""
    units: Mapping[str, Units[Any]]
    """Units by the name of the measure."""


def read_measured_run(path: Path) -> MeasuredRun:
    """Read the results of a run, of one of its checkpoints, or of a folder given with --out."""
    if not path.exists():
        raise ValueError(f"{path}: there is no such run")
    compared = [measure for measure in MEASURES.values() if measure.units is not None]
    is_outside_run = any(is_there(path / measure.file) for measure in compared)
    if not is_outside_run and runs.is_checkpoint_outside_run(path):
        raise ValueError(f"{path}: a checkpoint outside a run; name the --out of its results")
    folder = path if is_outside_run else runs.results_folder(path)
    checkpoint = None if is_outside_run else runs.find_checkpoint(path)
    results = {
        measure.name: read_result(folder, measure)
        for measure in compared
        if is_measured(folder, measure)
    }
    if not results:
        raise ValueError(
            f"{path}: nothing to compare yet; first run mixerloop evaluate nll, hops or core on it"
        )
    if len({_model_of(result) for result in results.values()}) > 1:
        files = " and ".join(MEASURES[name].file for name in results)
        raise ValueError(f"{folder}: {files} are of different models; evaluate again")
    result = next(iter(results.values()))
    sha = result.provenance.checkpoint_sha256
    if checkpoint is not None and _fingerprint(checkpoint) != sha:
        raise ValueError(f"{folder}: its results are not of {checkpoint}; evaluate it again")
    return MeasuredRun(
        path=path,
        checkpoint=sha,
        schedule=result.schedule,
        seed=result.provenance.seed,
        config=None if checkpoint is None else configs.load(checkpoint / runs.CONFIG),
        trained_on=None if checkpoint is None else _trained_on(checkpoint),
        step=None if checkpoint is None else checkpoint.name,
        parent=None if checkpoint is None else _parent(checkpoint),
        units={
            name: _units(folder, MEASURES[name], of_measure) for name, of_measure in results.items()
        },
    )


def _parent(checkpoint: Path) -> str | None:
    parent = read_parent(checkpoint)
    return None if parent is None else parent.sha256


def _model_of(result: Result) -> tuple[str | None, str, int | None, float | None]:
    made = result.provenance
    return made.checkpoint_sha256, result.schedule, made.seed, made.damping


def _units(folder: Path, measure: Measure, result: Result) -> Units[Any]:
    assert measure.units is not None
    check_details(folder, measure)
    try:
        return load(measure.units)(folder, result)
    except ValueError as error:
        path = folder / (measure.details or measure.file)
        again = command_for(folder, measure)
        raise ValueError(
            f"{path}: not as it was written ({one_line(error)}); measure again: {again}"
        ) from None


def _fingerprint(checkpoint: Path) -> str:
    sealed_files(checkpoint)  # a damaged list is no other checkpoint
    return file_sha256(checkpoint / runs.CONTENTS)


def _trained_on(checkpoint: Path) -> str | None:
    run = checkpoint.parent.parent
    return runs.read_provenance(run).get("data") if is_there(run / runs.PROVENANCE) else None
