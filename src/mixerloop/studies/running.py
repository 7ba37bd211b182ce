"""`plan_study` and `run_study`: from a study file to a finished report."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mixerloop import catalog, machine
from mixerloop.files import check_can_hold
from mixerloop.parsing import checked, one_line, one_of
from mixerloop.program import is_stopping
from mixerloop.progress_line import LOG_SECONDS_VARIABLE
from mixerloop.reports.page import check_page
from mixerloop.studies.cells import (
    CellState,
    check_cells,
    check_comparison,
    compare_part,
    is_done,
    prepare_data,
    run_prefill,
    state_of,
)
from mixerloop.studies.display import CellLines, say
from mixerloop.studies.engines import (
    default_jobs,
    is_timed,
    run_in_turn,
    run_side_by_side,
    threads_of_each,
)
from mixerloop.studies.expected_time import expected_of_all
from mixerloop.studies.plan import Plan, make_plan
from mixerloop.studies.reporting import WrittenReport, make_report
from mixerloop.studies.study import CORPUS, HELD_OUT, TOKENIZER, read_study
from mixerloop.studies.table import Row, Table
from mixerloop.study_folder import REPORT, default_folder

Engine = Literal["here", "ray"]
SHOWN_SECONDS = 1  # between the lines of progress of cells that run side by side


@dataclass(frozen=True, kw_only=True)
class PendingCell:
    """A cell that will be run, unless it is done."""

    row: Row
    state: CellState
    expected_seconds: float | None
    """For the rest of the training; None for a cell that is done, was picked, or needs a GPU."""

    def to_json(self) -> dict[str, Any]:
        """A row of the cells that `mixerloop study FILE --dry-run --json` prints."""
        return {
            "cell": self.row.number,
            "name": self.row.run,
            "parameters": self.row.parameters,
            "flops_per_token": self.row.flops_per_token,
            "expected_seconds": self.expected_seconds,
            **asdict(self.state),
        }


@dataclass(frozen=True, kw_only=True)
class PlannedStudy:
    """A study before anything is written or trained."""

    plan: Plan
    cells: tuple[PendingCell, ...]
    """All cells of the study, or the picked cells."""
    picked: bool
    """Whether cells were picked; no report is written then."""
    chosen_jobs: int | None
    """The number of cells at a time that the user chose; None leaves the choice to us."""
    expected_jobs: int = 1
    """The number of cells at a time that the expected seconds assume."""

    def jobs_for(self, rows: Sequence[Row]) -> int:
        """How many of these cells to run at a time; picked cells are run in turn."""
        if self.chosen_jobs is not None:
            return self.chosen_jobs
        return 1 if self.picked else default_jobs(rows)

    def precision(self) -> dict[str, dict[str, str]]:
        """The compute type of training and of each measurement, by part."""
        return {
            name: {
                "training": part.trained_in(),
                **{
                    measure: part.first.measured_in(measure)
                    for measure in dict.fromkeys(name for row in part for name in row.measure)
                },
            }
            for name, part in Table(self.plan.rows).by("part").items()
        }

    def to_json(self) -> dict[str, Any]:
        """The JSON that `mixerloop study FILE --dry-run --json` prints."""
        return {"cells": [cell.to_json() for cell in self.cells], "precision": self.precision()}


@dataclass(frozen=True, kw_only=True)
class StudyOutcome:
    """The folder, the report and the failures of a study that was run."""

    folder: Path
    report: WrittenReport | None
    """None if only picked cells were run."""
    failed: tuple[str, ...]
    """Cells and comparisons that failed; running the study again retries them."""


@checked
def plan_study(
    file: Path | str,
    *,
    out: Path | str | None = None,
    cells: Sequence[int] | None = None,
    jobs: int | None = None,
    parent: Path | str | None = None,
) -> PlannedStudy:
    """Check a study file and read the state of its cells; nothing is written.

    `file` may also be the name of a study of the catalog. `out` is the study's folder, by default
    runs/NAME for NAME.toml. `cells` picks cells by their numbers. `parent` is the run of a study
    that asks for one. A few training steps of each model are timed to estimate how long the study
    takes.
    """
    study = read_study(catalog.study_file(file))
    plan = make_plan(
        study,
        default_folder(study.path) if out is None else Path(out),
        parent=None if parent is None else Path(parent),
    )
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    chosen = _chosen(plan, cells)
    machine.keep_freed_memory()
    check_can_hold(plan.folder)
    plan.check_unchanged()
    states = [state_of(plan.folder, row) for row in chosen]
    planned = PlannedStudy(
        plan=plan,
        cells=tuple(
            PendingCell(row=row, state=state, expected_seconds=None)
            for row, state in zip(chosen, states, strict=True)
        ),
        picked=cells is not None,
        chosen_jobs=jobs,
    )
    return planned if planned.picked else _with_expected_seconds(planned)


@checked
def run_study(
    file: Path | str,
    *,
    out: Path | str | None = None,
    cells: Sequence[int] | None = None,
    jobs: int | None = None,
    parent: Path | str | None = None,
    engine: Engine = "here",
    corpus: Sequence[Path | str] = (),
    held_out: Sequence[Path | str] = (),
    tokenizer: Path | str | None = None,
    overwrite: bool = False,
) -> StudyOutcome:
    """Run the unfinished cells of a study, compare its models and write its report.

    The first five arguments are those of `plan_study`. `corpus`, `held_out` and `tokenizer` are the
    files of a study that asks for text. Cells are run `jobs` at a time, each in its own process, or
    on a Ray cluster; the numbers do not depend on this choice. Progress goes to stderr. `overwrite`
    lets the report replace files that this program did not write.
    """
    planned = plan_study(file, out=out, cells=cells, jobs=jobs, parent=parent)
    return run_planned(
        planned,
        engine=engine,
        corpus=corpus,
        held_out=held_out,
        tokenizer=tokenizer,
        overwrite=overwrite,
    )


def run_planned(
    planned: PlannedStudy,
    *,
    engine: Engine = "here",
    corpus: Sequence[Path | str] = (),
    held_out: Sequence[Path | str] = (),
    tokenizer: Path | str | None = None,
    overwrite: bool = False,
) -> StudyOutcome:
    """Run a study that `plan_study` planned; the other arguments are those of `run_study`."""
    one_of(Engine, engine, "engine")
    plan = planned.plan
    user_files: dict[str, Sequence[Path]] = {
        CORPUS: [Path(path) for path in corpus],
        HELD_OUT: [Path(path) for path in held_out],
        TOKENIZER: [] if tokenizer is None else [Path(tokenizer)],
    }
    for word in (word for word, files in user_files.items() if files):
        if not any(word in part.prepare for part in plan.file.study.parts):
            name = word.strip("{}")
            raise ValueError(
                f"{plan.file.path}: no part has {word} in prepare, so {name} has no meaning"
            )
    if not planned.picked and plan.folder.is_dir():  # now, and not only after hours of training
        check_page(plan.folder / REPORT, overwrite=overwrite)
        for part in Table(plan.rows).by("part"):
            check_comparison(plan, part)
    _start(plan, user_files)
    failed = _run_cells(planned, [entry for entry in planned.cells if entry.row.is_tuning], engine)
    if any(entry.row.is_tuning for entry in planned.cells):
        plan = make_plan(plan.file, plan.folder, parent=plan.parent)  # with the chosen values
        check_cells(plan)
        plan.write()
        planned = _with_plan(planned, plan)
    failed += _run_cells(
        planned, [entry for entry in planned.cells if not entry.row.is_tuning], engine
    )
    if planned.picked:
        return StudyOutcome(folder=plan.folder, report=None, failed=tuple(failed))
    failed += _time_prefill(plan)
    failed += _compare(plan)
    report = make_report([plan.folder], overwrite=overwrite)
    return StudyOutcome(folder=plan.folder, report=report, failed=tuple(failed))


def _chosen(plan: Plan, numbers: Sequence[int] | None) -> Sequence[Row]:
    if numbers is None:
        return plan.rows
    for number in numbers:
        if not 1 <= number <= len(plan.rows):
            raise ValueError(f"cells are numbers from 1 to {len(plan.rows)}, got {number}")
    return [plan.rows[number - 1] for number in numbers]


def _with_expected_seconds(planned: PlannedStudy) -> PlannedStudy:
    """Time a few steps of each model that is not trained yet, with the threads it will have."""
    waiting = [entry.row for entry in planned.cells if entry.state.state != "done"]
    jobs = planned.jobs_for(waiting)
    whole = expected_of_all(waiting, threads=threads_of_each(jobs))
    cells = []
    for entry in planned.cells:
        seconds = whole.get(entry.row.number)
        left = 1 - (entry.state.step or 0) / (entry.state.total_steps or 1)
        expected = None if seconds is None else left * seconds
        cells.append(replace(entry, expected_seconds=expected))
    return replace(planned, cells=tuple(cells), expected_jobs=jobs)


def _start(plan: Plan, given: dict[str, Sequence[Path]]) -> None:
    """Prepare the data, then reject cells that cannot be trained, then write the plan."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    for part in plan.file.study.parts:
        prepare_data(plan, part, given)
    check_cells(plan)
    plan.write()


def _with_plan(planned: PlannedStudy, plan: Plan) -> PlannedStudy:
    """The same cells of another plan."""
    cells = tuple(replace(entry, row=plan.rows[entry.row.number - 1]) for entry in planned.cells)
    return replace(planned, plan=plan, cells=cells)


def _run_cells(planned: PlannedStudy, entries: Sequence[PendingCell], engine: Engine) -> list[str]:
    """Run the cells that are not done; returns the names of those that failed."""
    plan = planned.plan
    untuned = [entry.row for entry in entries if entry.row.waits_for_tuning]
    for row in untuned:
        say(row.run, "not run: the cells that tune its part are not done")
    waiting = [
        entry.row
        for entry in entries
        if not entry.row.waits_for_tuning and not is_done(plan.folder, entry.row)
    ]
    return [row.run for row in untuned] + _run_waiting(planned, waiting, engine)


def _run_waiting(planned: PlannedStudy, waiting: list[Row], engine: Engine) -> list[str]:
    plan, of = planned.plan, len(planned.plan.rows)
    if engine == "ray":
        from mixerloop.studies.on_ray import run_on_ray

        run_on_ray(plan.folder, waiting, say, of=of)
        return [row.run for row in waiting if not is_done(plan.folder, row)]
    independent = [row for row in waiting if not is_timed(row)]
    if (jobs := planned.jobs_for(independent)) == 1:
        return run_in_turn(plan.folder, waiting, of=of)
    expected = {
        entry.row.number: entry.expected_seconds
        for entry in planned.cells
        if entry.expected_seconds is not None
    }
    with CellLines(of) as lines:
        failed = run_side_by_side(
            plan.folder,
            independent,
            of=of,
            jobs=jobs,
            expected_seconds=expected,
            environment={LOG_SECONDS_VARIABLE: str(SHOWN_SECONDS)},
            heard=lines.heard,
        )
    return failed + run_in_turn(plan.folder, [row for row in waiting if is_timed(row)], of=of)


def _time_prefill(plan: Plan) -> list[str]:
    if (settings := plan.file.study.prefill) is None:
        return []
    try:
        run_prefill(plan, settings, lambda text: say("prefill", text))
    except (ValueError, OSError, ArithmeticError, RuntimeError) as error:
        if is_stopping():
            raise
        say("prefill", f"failed: {one_line(error)}")
        return ["prefill"]
    return []


def _compare(plan: Plan) -> list[str]:
    failed = []
    for part in Table(plan.rows).where(is_tuning=False).by("part"):
        try:
            compare_part(plan, part)
        except (ValueError, OSError) as error:
            if is_stopping():
                raise
            say(part, f"not compared: {one_line(error)}")
            failed.append(f"{part}, comparing")
    return failed
