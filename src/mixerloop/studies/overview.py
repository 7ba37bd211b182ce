"""`study_status`: the state of every cell of studies, from their files alone; and their rows."""

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mixerloop import runs
from mixerloop.files import is_there
from mixerloop.ownership import Ledger
from mixerloop.parsing import checked
from mixerloop.studies.cells import CellState, state_of
from mixerloop.studies.reading import StudyPlan, filled, read_plan
from mixerloop.studies.table import Table
from mixerloop.study_folder import PLAN, folder_named


@dataclass(frozen=True, kw_only=True)
class CellStatus:
    """A cell of a study and the progress of its training."""

    number: int
    name: str
    state: CellState


@dataclass(frozen=True, kw_only=True)
class StudyStatus:
    """A study and the state of each of its cells."""

    folder: Path
    title: str
    cells: tuple[CellStatus, ...]

    def to_json(self) -> dict[str, Any]:
        """An element of the list that `mixerloop study status --json` prints."""
        cells = [
            {"cell": cell.number, "name": cell.name, **asdict(cell.state)} for cell in self.cells
        ]
        return {"study": str(self.folder), "title": self.title, "cells": cells}


@checked
def study_status(folders: Sequence[Path | str] = ()) -> list[StudyStatus]:
    """The status of studies, or of all studies in runs/; changes no file.

    A study is named by its folder, its file or its name, as in `study_folder.folder_named`.
    """
    paths = [folder_named(folder) for folder in folders]
    if not paths:
        paths = sorted(path.parent for path in runs.RUNS.glob(f"*/{PLAN}"))
        if not paths:
            raise ValueError("no study in runs; start one with mixerloop study quick")
    return [_status(path) for path in paths]


def study_table(folder: Path | str) -> Table:
    """The rows of a study, named as in `study_status`, with their results as far as there are."""
    path = folder_named(folder)
    return Table(tuple(filled(row, path) for row in _plan(path).rows))


def write_table(
    folder: Path | str,
    *,
    csv: Path | None = None,
    parquet: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Write the rows of a study and the figures of their results as CSV, as Parquet or as both.

    `overwrite` also replaces files that this program did not write.
    """
    import pyarrow.csv
    import pyarrow.parquet

    rows = pyarrow.Table.from_pylist(study_table(folder).records())
    for path, write in ((csv, pyarrow.csv.write_csv), (parquet, pyarrow.parquet.write_table)):
        if path is not None:
            content = io.BytesIO()
            write(rows, content)
            Ledger(path.parent).write({path: content.getvalue()}, overwrite=overwrite)


def _plan(path: Path) -> StudyPlan:
    if not is_there(path / PLAN):
        raise ValueError(f"{path}: not the folder of a study; mixerloop study makes one")
    return read_plan(path)


def _status(path: Path) -> StudyStatus:
    plan = _plan(path)
    cells = tuple(
        CellStatus(
            number=row.number,
            name=row.run,
            state=state_of(path, row),
        )
        for row in plan.rows
    )
    return StudyStatus(folder=path, title=plan.title, cells=cells)
