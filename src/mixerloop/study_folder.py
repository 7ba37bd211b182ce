"""The folder of a study, as it is written by studies and read by reports.

FOLDER/plan.json                parts, models and cells
FOLDER/data/PART                prepared data
FOLDER/PART/ARM-seedN           runs, with their results
FOLDER/PART/comparison.json     differences between the models of a part
FOLDER/prefill.json             how long prompts take
FOLDER/cells/PART/ARM-seedN/    lock, config, log and state of a cell
FOLDER/cells/PART/data/         the same of a part's data
FOLDER/report.html, report.md, figures/
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mixerloop.config import ComputeDtype, ComputeDtypeChoice, Device
from mixerloop.files import read_json
from mixerloop.measures import measure_named
from mixerloop.results import Provenance, decode

PLAN = "plan.json"
DATA = "data"
COMPARISON = "comparison.json"
PREFILL = "prefill.json"
CELLS, LOG, STATE, ERROR = "cells", "log.txt", "cell.json", "error.txt"
REPORT, REPORT_TEXT, FIGURES = "report.html", "report.md", "figures"

Match = Literal["parameters+tokens", "flops", "seconds"]
"""What all models of a part share."""
MEASURED_IN: ComputeDtype = "float32"
"""The type of a measurement whose type the study file does not say."""


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
class PlannedArm:
    """One model of a part."""

    name: str
    schedule: str
    """In notation."""
    deepened: str | None = None
    """The model whose compute per token sets the number of layers; None for the config's own."""
    num_layers: int
    d_model: int
    vocab_size: int
    parameters: int
    flops_per_token: float
    """Forward and backward."""
    macs: dict[str, int]
    """Multiply-adds of one occurrence, by sublayer."""


@dataclass(frozen=True, kw_only=True)
class PlannedPart:
    """Models that are compared."""

    name: str
    match: Match | Literal["as they are"]
    """"as they are" for runs that no study matched."""
    measure: tuple[str, ...]
    seeds: tuple[int | None, ...]
    """None for a run without a seed, which no study has."""
    data: str
    """The arguments of `mixerloop data prepare`."""
    compute_dtype: ComputeDtypeChoice
    """Of training; a cell on a GPU settles `auto`."""
    measure_in: dict[str, ComputeDtype] = field(default_factory=dict)
    """The type of each measurement; older plans name none and measured in float32."""
    transport: TransportSettings
    arms: tuple[PlannedArm, ...]

    def measured_in(self, measure: str) -> ComputeDtype:
        """The type of a measurement."""
        return self.measure_in.get(measure, MEASURED_IN)


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """One model under one seed."""

    number: int
    """From 1, over all parts."""
    name: str
    """The run's folder inside the study's."""
    part: str
    arm: str
    seed: int | None
    measure: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The content of plan.json."""

    name: str
    title: str
    about: str
    parts: tuple[PlannedPart, ...]
    cells: tuple[PlannedCell, ...]
    prefill: PrefillSettings | None
    provenance: Provenance


def record_of(folder: Path, cell: str) -> Path:
    """Where the lock, the log and the state of a cell are."""
    return folder / CELLS / cell


def read_plan(folder: Path) -> StudyPlan:
    """The plan in the folder of a study."""
    path = folder / PLAN
    data = read_json(path)
    try:
        plan = decode(StudyPlan, data)
        for measure in {name for cell in plan.cells for name in cell.measure}:
            measure_named(measure)
    except ValueError:
        raise ValueError(
            f"{path}: not a plan as this version writes it; study into another folder"
        ) from None
    return plan
