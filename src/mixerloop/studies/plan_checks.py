"""What shows before training to be wrong in the cells of a plan."""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from mixerloop.config import check_fits
from mixerloop.data.preparation import TaskPreparation
from mixerloop.data.prepared import Prepared
from mixerloop.data.task_folder import TaskFolder
from mixerloop.data.tasks.registry import task_of
from mixerloop.studies.cell import Cell
from mixerloop.studies.matching import check_budget, check_equal
from mixerloop.studies.measuring import check_measure
from mixerloop.studies.study import StudyFile, folder_key, preparation_of
from mixerloop.studies.variants import Variant
from mixerloop.study_folder import DATA, TransportSettings

NAME_BYTES = 200
"""The most bytes of the names of a part, an arm and a seed together. A file system allows 255 for
one name; figures and unfinished files are named after these with some bytes more."""


def check_plan(file: StudyFile, cells: Sequence[Cell]) -> None:
    """Reject names, budgets and measures that are wrong in any of a study's cells."""
    _check_names(file, cells)
    variants: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        variants.setdefault(cell.part, {}).setdefault(cell.arm, cell)
    for models in variants.values():
        _check_matched(file, list(models.values()))
        for cell in models.values():
            data = _known_data(cell)
            if data is not None:
                with file.at(f"{file.place_of(cell.settings)}.arms", f"'{cell.arm}': "):
                    check_fits("its task", data.vocab_size, cell.config.model.vocab_size)
            check_measures(file, cell, cell.measure, data)
    for part in file.study.parts:
        taken = {name for cell in cells if cell.settings is part for name in cell.measure}
        for name in part.measure:
            if name not in taken:
                reason = f"{name}: no arm repeats what this measures"
                raise file.refused(f"{file.place_of(part)}.measure", reason)
    _check_budgets(file, [next(iter(models.values())) for models in variants.values()])


def _check_names(file: StudyFile, cells: Sequence[Cell]) -> None:
    """Reject two things of one name, and names that a file system does not hold."""
    owners, names = dict[str, Variant](), set[str]()
    for cell in cells:
        here, name = file.place_of(cell.settings), folder_key(cell.name)
        owner = owners.setdefault(folder_key(cell.part), cell.variant)
        if owner != cell.variant:
            raise file.refused(
                f"{here}.name",
                f"'{cell.part}' would be a folder of part '{owner.part.name}' and of part "
                f"'{cell.settings.name}'; rename a part or a size",
            )
        if name in names:
            raise file.refused(f"{here}.arms", f"two cells are called '{cell.name}'")
        names.add(name)
        size = len(os.fsencode(f"{cell.part}{cell.arm}{cell.seed}"))
        if size > NAME_BYTES:
            raise file.refused(
                f"{here}.arms",
                f"the names of '{cell.name}' have {size} bytes, and file names have room for "
                f"{NAME_BYTES}; give the arm a shorter name",
            )


def _check_matched(file: StudyFile, models: Sequence[Cell]) -> None:
    """Reject models that are not given the same amount of what their part matches."""
    first, part = models[0], models[0].settings
    here = file.place_of(part)
    for cell in models:
        with file.at(f"{here}.match" if cell is first else f"{here}.arms", f"'{cell.arm}': "):
            check_budget(part.match, cell.config)
        if cell.context != first.context and "nll" in part.measure:
            raise file.refused(
                f"{here}.arms",
                f"'{cell.arm}' reads windows of {cell.context} tokens and '{first.arm}' of "
                f"{first.context}: their NLL cannot be compared",
            )
    if all(cell.context is not None for cell in models):  # else the data is rejected when opened
        with file.at(f"{here}.arms"):
            given = [(cell.arm, one.amounts()) for cell in models for one in cell.possible()]
            check_equal(part.match, given)


def _check_budgets(file: StudyFile, of_variants: Sequence[Cell]) -> None:
    """Reject budgets in tokens that are less than a step, or the same number of steps."""
    trained = dict[tuple[str, str, bool, float], int]()
    for cell in of_variants:
        variant, tokens = cell.variant, cell.amounts().get("tokens")
        if variant.tokens is None or tokens is None:
            continue
        _, train = cell.config.for_training()
        step = train.global_batch * (cell.context or 1)
        key = "tune_tokens" if variant.is_tuning else "tokens"
        with file.at(f"{file.place_of(cell.settings)}.{key}"):
            if variant.tokens < step:
                raise ValueError(f"{variant.tokens:,} tokens are less than a step of {step:,}")
            size = "" if variant.size is None else variant.size.name
            these = (cell.settings.name, size, variant.is_tuning, tokens)
            other = trained.setdefault(these, variant.tokens)
            if other != variant.tokens:
                raise ValueError(
                    f"{other:,} and {variant.tokens:,} tokens are both {tokens:,} in whole steps"
                )


def _known_data(cell: Cell) -> Prepared | None:
    """The data of a cell as far as the study file says it: a synthetic task."""
    preparation = preparation_of(cell.settings)
    if not isinstance(preparation, TaskPreparation):
        return None
    settings = preparation.settings
    return TaskFolder(Path(DATA) / cell.settings.name, task_of(settings), settings)


def check_measures(
    file: StudyFile, cell: Cell, measures: Iterable[str], data: Prepared | None
) -> None:
    """Reject measures that cannot be taken of a cell after its training."""
    here, transport = file.place_of(cell.settings), cell.settings.transport
    for measure in measures:
        try:
            check_measure(measure, data, cell.config, cell.variant)
        except ValueError as error:
            named = [key for key in dataclasses.asdict(transport) if key in str(error)]
            is_named = named and transport != TransportSettings()
            place = f"{here}.transport.{named[0]}" if is_named else f"{here}.measure"
            raise file.refused(place, f"'{cell.arm}', {measure}: {error}") from None
