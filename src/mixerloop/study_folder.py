"""The folder of a study, which studies write and reports read.

FOLDER/plan.json                the rows of the study
FOLDER/data/PART                prepared data
FOLDER/PART/ARM-seedN           runs, with their results
FOLDER/PART/comparison.json     differences between the models of a part
FOLDER/prefill.json             how long prompts take
FOLDER/cells/PART/ARM-seedN/    lock, config, log and state of a cell
FOLDER/cells/PART/data/         the same of a part's data
FOLDER/report.html, report.md, figures/
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mixerloop import catalog, runs
from mixerloop.config import ComputeDtype, Device
from mixerloop.files import is_there

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
