"""Rows from files: the plan of a study, the results of its cells, and runs outside a study."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.evaluation.units import Units
from mixerloop.files import file_sha256, is_there, sealed_files, write_sealed
from mixerloop.history import Record, read_history
from mixerloop.measures import MEASURES, Measure, load, measure_named
from mixerloop.parent_record import read_parent
from mixerloop.parsing import from_dict, one_line
from mixerloop.result_files import (
    check_details,
    command_for,
    is_measured,
    is_of,
    read_once,
    read_result,
    read_sealed_file,
)
from mixerloop.results import Provenance, Result, encode
from mixerloop.studies.table import CurvePoint, Row
from mixerloop.study_folder import PLAN, PrefillSettings


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The content of plan.json."""

    name: str
    title: str
    about: str
    rows: tuple[Row, ...]
    prefill: PrefillSettings | None
    provenance: Provenance

    def write(self, folder: Path) -> None:
        """Write plan.json, which cells, reports and `study status` read."""
        facts = {key: encode(value) for key, value in vars(self).items() if key != "rows"}
        rows = [row.planned() for row in self.rows]
        write_sealed(folder / PLAN, {**facts, "rows": rows})


def read_plan(folder: Path) -> StudyPlan:
    """Read plan.json from the folder of a study, also that of version 0.2.0."""
    path = folder / PLAN
    again = "study into another folder, or remove it and run the study again"

    def read() -> StudyPlan:
        data = read_sealed_file(path, again=again)
        try:
            data = _of_version_0_2(data) if "cells" in data else data
            plan = from_dict(StudyPlan, data, "result.")
        except ValueError as error:
            reason = f"not as it was written ({one_line(error)})"
            raise ValueError(f"{path}: {reason}; {again}") from None
        _check(plan, path)
        return plan

    plan = read_once(path, read, what=StudyPlan)
    for measure in {name for row in plan.rows for name in row.measure}:
        try:
            measure_named(measure)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return plan


def _check(plan: StudyPlan, path: Path) -> None:
    """Raise if the names of rows lead out of the study, or if the cost of a model is not known."""
    for row in plan.rows:
        of, _, run = row.run.rpartition("/")
        if of != row.part or "/" in of or any(name.startswith(".") for name in (of, run)):
            raise ValueError(f"{path}: '{row.run}' is no name of this study's")
        if not {"mixer", "ffn"} <= row.macs.keys():
            raise ValueError(f"{path}: model '{row.arm}' lacks the cost of a mixer or an ffn")


def _of_version_0_2(data: dict[str, Any]) -> dict[str, Any]:
    """A plan of parts, their arms and cells, as one of rows."""
    try:
        parts = {part["name"]: part for part in data["parts"]}
        rows = [_row(cell, parts[cell["part"]]) for cell in data["cells"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a plan of parts and cells: {one_line(repr(error))}") from None
    return {**{key: data[key] for key in data if key not in ("parts", "cells")}, "rows": rows}


def _row(cell: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    (arm,) = (arm for arm in part["arms"] if arm["name"] == cell["arm"])
    parent = part.get("parent")
    if parent is not None:
        parent = {**parent, "run_id": None, "fresh": arm.get("fresh", [])}
    before: dict[str, Any] = {
        **{"deepened": None, "layer_parameters": [], "tuned": {}, "tunes": None, "amounts": {}},
        **{"differs": {}, "measure_in": {}, "size": None, "tokens": None, "is_tuning": False},
        **{"documents": None, "family": part["name"], "context": None, "cpus": 1, "gpus": 0},
    }
    of_part = {key: part[key] for key in part if key not in ("name", "arms", "seeds", "parent")}
    of_arm = {key: arm[key] for key in arm if key not in ("name", "fresh")}
    of_cell = {key: cell[key] for key in cell if key != "name"}
    row = {**before, **of_part, **of_arm, **of_cell, "run": cell["name"], "parent": parent}
    rate = row["tuned"].get("train.peak_lr")
    return {**row, "family": row["family"] or part["name"], "rate": rate}


def filled(row: Row, folder: Path) -> Row:
    """A row with the results and the training of its run; none while a planned result is missing.

    `folder` is that of the study.
    """
    path = folder / row.run
    results = {
        name: result
        for name, measure in sorted(MEASURES.items())
        if is_measured(path / runs.RESULTS, measure)
        and is_of(result := read_result(path / runs.RESULTS, measure), row.documents)
    }
    if not results or not results.keys() >= set(row.measure):
        return row
    metrics = _history(path, runs.METRICS, "tokens")
    timing = _history(path, runs.TIMING, "seconds")
    return replace(
        row,
        path=path,
        results=results,
        curve=tuple(
            CurvePoint(tokens=line["tokens"], held_out_nll=line["held_out_nll"])
            for line in metrics
            if "held_out_nll" in line
        ),
        seconds=sum(line["seconds"] for line in timing) if timing else None,
        trained_tokens=metrics[-1]["tokens"] if metrics else None,
        loss_parts=_loss_parts(metrics),
        provenance=runs.read_provenance(path) if is_there(path / runs.PROVENANCE) else {},
    )


def _loss_parts(metrics: Sequence[Record]) -> dict[str, float]:
    """The loss and its parts, as means over the last tenth of the steps that have them."""
    last = metrics[-max(1, len(metrics) // 10) :]
    of_names = {
        name: [record[name] for record in last if name in record]
        for record in last
        for name in record
        if name == "loss" or name.startswith("loss.")
    }
    means = {name: sum(values) / len(values) for name, values in of_names.items()}
    return means if len(means) > 1 else {}


def _history(run: Path, name: str, key: str) -> list[Record]:
    """The records of a run, all of which must have a key."""
    records = read_history(run, name)
    for record in records:
        if key not in record:
            raise ValueError(f"{run / name}: damaged, step {record['step']} has no {key}")
    return records


def read_run(path: Path, *, arm: str = "") -> Row:
    """A row with the unit scores of a run, a checkpoint or a folder of results."""
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
    if checkpoint is not None and _fingerprint(checkpoint) != result.provenance.checkpoint_sha256:
        raise ValueError(f"{folder}: its results are not of {checkpoint}; evaluate it again")
    row = Row(
        arm=arm,
        seed=result.provenance.seed,
        schedule=result.schedule,
        path=path,
        results=results,
        units={name: _units(folder, MEASURES[name], one) for name, one in results.items()},
    )
    if checkpoint is None:
        return row
    run = checkpoint.parent.parent
    has_provenance = is_there(run / runs.PROVENANCE)
    return replace(
        row,
        config=configs.load(checkpoint / runs.CONFIG),
        parent=read_parent(checkpoint),
        trained_on=runs.read_provenance(run).get("data") if has_provenance else None,
        step=checkpoint.name,
    )


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
