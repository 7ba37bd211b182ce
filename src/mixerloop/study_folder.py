"""The folder of a study, which studies write and reports read.

FOLDER/plan.json                parts, models and cells
FOLDER/data/PART                prepared data
FOLDER/PART/ARM-seedN           runs, with their results
FOLDER/PART/comparison.json     differences between the models of a part
FOLDER/prefill.json             how long prompts take
FOLDER/cells/PART/ARM-seedN/    lock, config, log and state of a cell
FOLDER/cells/PART/data/         the same of a part's data
FOLDER/report.html, report.md, figures/
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mixerloop import catalog, runs
from mixerloop.config import ComputeDtype, ComputeDtypeChoice, Device, Documents
from mixerloop.files import is_there
from mixerloop.measures import measure_named
from mixerloop.result_files import read_typed
from mixerloop.results import Provenance

PLAN = "plan.json"
DATA = "data"
COMPARISON = "comparison.json"
PREFILL = "prefill.json"
CELLS, LOG, STATE, ERROR = "cells", "log.txt", "cell.json", "error.txt"
REPORT, REPORT_TEXT, FIGURES = "report.html", "report.md", "figures"

Match = Literal["parameters+tokens", "flops", "seconds"]
"""The quantity that is equal for all models of a part."""
MEASURED_IN: ComputeDtype = "float32"
"""The compute type of a measurement unless the study file names another type."""


@dataclass(frozen=True, kw_only=True)
class TransportSettings:
    """The options of `mixerloop transport` that a study sets."""

    windows: int = 16
    positions: int = 16
    context: int = 128
    removal: bool = False


@dataclass(frozen=True, kw_only=True)
class PrefillSettings:
    """The options of `mixerloop bench prefill` that a study sets."""

    sizes: tuple[str, ...]
    batches: tuple[int, ...]
    length: int = 1024
    warmup: int = 6
    repeats: int = 20
    compute_dtype: ComputeDtype = "float32"
    device: Device = "auto"


@dataclass(frozen=True, kw_only=True)
class PlannedParent:
    """The model whose weights all models of a part start from."""

    folder: str
    sha256: str
    """The fingerprint of the weights."""
    schedule: str
    """The parent's own schedule, in notation."""
    step: int | None
    """The updates that the weights had; None for an exported folder."""


@dataclass(frozen=True, kw_only=True)
class PlannedArm:
    """One model of a part."""

    name: str
    schedule: str
    """The schedule in notation."""
    deepened: str | None = None
    """The model whose compute per token sets the number of layers; None for the config's own."""
    num_layers: int
    d_model: int
    vocab_size: int
    parameters: int
    flops_per_token: float
    """Operations of a forward and a backward pass."""
    macs: dict[str, int]
    """Multiply-adds of one occurrence, by sublayer."""
    layer_parameters: tuple[dict[str, int], ...] = ()
    """For each layer the parameters of its sublayers, norms included; older plans name none."""
    tuned: dict[str, float] = field(default_factory=dict)
    """The value of the tuned key; empty if the part does not tune, or has not yet."""
    tunes: str | None = None
    """The model whose key is tuned by this one; None unless the part is one of tuning."""
    amounts: dict[str, float] = field(default_factory=dict)
    """`tokens` and `flops` of the training in whole steps, or `seconds`; none in older plans."""
    differs: dict[str, str] = field(default_factory=dict)
    """The keys of data and training in which the models of a part differ, with own values."""
    fresh: tuple[str, ...] = ()
    """The tensors that the part's parent lacks; empty without a parent, where all are fresh."""


@dataclass(frozen=True, kw_only=True)
class PlannedPart:
    """A part of a study: its models, seeds, data and measurements."""

    name: str
    match: Match | Literal["as they are"]
    """"as they are" for runs that no study matched."""
    measure: tuple[str, ...]
    seeds: tuple[int | None, ...]
    """None for a run without a seed, which no study has."""
    data: str
    """The arguments of `mixerloop data prepare`."""
    compute_dtype: ComputeDtypeChoice
    """The compute type of models that name none of their own; a cell on a GPU resolves `auto`."""
    measure_in: dict[str, ComputeDtype] = field(default_factory=dict)
    """The compute type of each measurement; older plans name none and used float32."""
    transport: TransportSettings
    arms: tuple[PlannedArm, ...]
    family: str = ""
    """The part of the study file; several parts of the plan differ in size and budget only."""
    size: str | None = None
    """The name of the size; None if the study file names no sizes."""
    tokens: int | None = None
    """The budget; None if the study file has it in the config alone."""
    is_tuning: bool = False
    """Whether the runs of this part choose a value for the other parts of the family."""
    documents: Documents | None = None
    """The held-out documents that an NLL is of; None for any, as in older plans."""
    parent: PlannedParent | None = None
    """None if the models of this part start from fresh weights."""

    def measured_in(self, measure: str) -> ComputeDtype:
        """The compute type of a measurement."""
        return self.measure_in.get(measure, MEASURED_IN)

    def trained_in(self) -> str:
        """The compute types of training, each with its models if there are several."""
        types = {
            arm.name: arm.differs.get("train.compute_dtype", self.compute_dtype)
            for arm in self.arms
        }
        return by_value(types)


def by_value(values: Mapping[str, str]) -> str:
    """The values of models: `4 (no_loop), 8 (mixer_loop, full_loop)`, or a common value alone."""
    models: dict[str, list[str]] = {}
    for model, value in values.items():
        models.setdefault(value, []).append(model)
    if len(models) == 1:
        return next(iter(models))
    return ", ".join(f"{value} ({', '.join(of)})" for value, of in models.items())


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """One model with one random seed."""

    number: int
    """Counted from 1 over all parts."""
    name: str
    """The run's folder inside the study's."""
    part: str
    arm: str
    seed: int | None
    measure: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The content of plan.json: parts with their models, and cells."""

    name: str
    title: str
    about: str
    parts: tuple[PlannedPart, ...]
    cells: tuple[PlannedCell, ...]
    prefill: PrefillSettings | None
    provenance: Provenance


def default_folder(study: Path) -> Path:
    """The folder of a study that is given none: runs/NAME for NAME.toml."""
    return runs.RUNS / study.stem


def folder_named(given: Path | str) -> Path:
    """The folder that a user names by path, by the study file or by the study's name.

    The last two stand for the study's default folder, if there is a study in it.
    """
    path = Path(given)
    is_file = path.suffix == catalog.SUFFIX
    if path.is_dir() or not (is_file or path.name == str(given)):
        return path
    folder = default_folder(path) if is_file else runs.RUNS / path
    return folder if is_there(folder / PLAN) else path


def record_of(folder: Path, cell: str) -> Path:
    """The folder of a cell's lock, log and state."""
    return folder / CELLS / cell


def read_plan(folder: Path) -> StudyPlan:
    """Read plan.json from the folder of a study."""
    path = folder / PLAN
    again = "study into another folder, or remove it and run the study again"
    plan = read_typed(StudyPlan, path, again=again)
    for measure in {name for cell in plan.cells for name in cell.measure}:
        try:
            measure_named(measure)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return plan
