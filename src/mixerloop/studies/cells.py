"""Running a cell: train, then take each measurement whose result is not there yet."""

import contextlib
import io
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.benchmarking.conditions import busy_warning
from mixerloop.benchmarking.prefill_speed import bench_prefill
from mixerloop.benchmarking.settings import PrefillSettings as PrefillBenchSettings
from mixerloop.benchmarking.text import prefill_line
from mixerloop.data.preparation import parse_preparation
from mixerloop.files import (
    LOCK,
    is_locked,
    is_there,
    locked,
    naming,
    read_sealed,
    remove_leftovers,
    write_file,
    write_sealed,
)
from mixerloop.interop.loading import open_subject
from mixerloop.interop.parents import open_parent
from mixerloop.measures import MEASURES
from mixerloop.parent_record import ParentRecord
from mixerloop.parsing import from_dict, one_line
from mixerloop.program import is_stopping
from mixerloop.progress_line import preparing_progress, says_how_to_resume, to_stderr
from mixerloop.provenance import now
from mixerloop.result_files import check_details, has_result, is_measured, read_result
from mixerloop.results import encode
from mixerloop.studies.measuring import measure
from mixerloop.studies.plan import Plan
from mixerloop.studies.plan_checks import check_measures
from mixerloop.studies.reading import read_run
from mixerloop.studies.study import CORPUS, HELD_OUT, TOKENIZER, PartSettings
from mixerloop.studies.table import Row, Table
from mixerloop.study_folder import (
    COMPARISON,
    DATA,
    ERROR,
    LOG,
    PREFILL,
    STATE,
    PrefillSettings,
    record_of,
)
from mixerloop.subject import Subject
from mixerloop.training.display import show_training
from mixerloop.training.opened import open_data
from mixerloop.training.parent import Parent, check_data
from mixerloop.training.sessions import Trained, resume, train
from mixerloop.training.status import status

Say = Callable[[str], None]
State = Literal["done", "failed", "running", "begun", "waiting", "damaged"]

MANIFEST = "manifest.json"
MADE_OF = "made_of.json"
PREPARE = "prepare"
YOURS = {CORPUS: "--corpus", TOKENIZER: "--tokenizer"}
WAIT_SECONDS = 2.0
COMPARISON_SEED = 0


@dataclass(frozen=True, kw_only=True)
class _CellRecord:
    """The content of cell.json."""

    state: State
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class _MadeOf:
    """The content of made_of.json: the arguments and the files that data was prepared from."""

    lists: dict[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        for key in (PREPARE, *YOURS, HELD_OUT):
            if key not in self.lists:
                raise ValueError(f"{key} is missing")


@dataclass(frozen=True, kw_only=True)
class CellState:
    """The progress of a cell, as its files show it."""

    state: State
    error: str | None = None
    step: int | None = None
    total_steps: int | None = None
    train_seconds: float | None = None
    """Seconds that the cell has spent in training."""


def state_of(folder: Path, row: Row) -> CellState:
    """The state of a row in a study's folder; reads files and changes none."""
    record, run = record_of(folder, row.run), folder / row.run
    written = _read_record(_CellRecord, record / STATE) or _CellRecord(state="waiting")
    state: State = "waiting"
    error: str | None = None
    if is_locked(record):
        state = "running"
    elif written.state == "failed":
        state, error = "failed", written.error
    elif written.state == "done" and not _missing(run, row):
        state = "done"
    elif (error := _damage(run, row.measure)) is not None:
        state = "damaged"
    provenance = run / runs.PROVENANCE
    if not is_there(provenance):
        return CellState(state=state, error=error)
    training = status(run)
    if training.state == "damaged" and state != "running":
        state, error = "damaged", training.problem
    return CellState(
        state="begun" if state == "waiting" else state,
        error=error,
        step=training.step,
        total_steps=training.total_steps,
        train_seconds=training.seconds,
    )


def is_done(folder: Path, row: Row) -> bool:
    """Whether a row is trained and has all its measurements."""
    return state_of(folder, row).state == "done"


def _check_made_of(plan: Plan, part: PartSettings, given: dict[str, Sequence[Path]]) -> None:
    """Reject data that was prepared with other arguments, or from other files than named now."""
    record = _read_record(_MadeOf, _data_record(plan, part) / MADE_OF, field="lists")
    if record is None:
        return
    before = record.lists
    data = plan.data(part.name)
    if before[PREPARE] != part.prepare:
        old, new = (" ".join(words) for words in (before[PREPARE], part.prepare))
        raise ValueError(
            f"{data}: was made with {old}, and the study now says {new}; choose another folder, "
            "or remove it"
        )
    for word, files in given.items():
        named = tuple(str(file.resolve()) for file in files)
        if word in part.prepare and named and named != before[word]:
            old = ", ".join(before[word]) or "none"
            raise ValueError(f"{data}: was made of other files ({old}); choose another folder")


def _data_record(plan: Plan, part: PartSettings) -> Path:
    return record_of(plan.folder, f"{part.name}/{DATA}")


def prepare_data(plan: Plan, part: PartSettings, given: dict[str, Sequence[Path]]) -> None:
    """Prepare the data of a part, or wait for the process that prepares the data."""
    data, record = plan.data(part.name), _data_record(plan, part)
    if is_there(data / MANIFEST):
        _check_made_of(plan, part, given)
        return
    place = f"parts[{plan.file.study.parts.index(part)}].prepare"
    words: list[str] = []
    for word in part.prepare:
        if word in YOURS and not given[word]:
            raise plan.file.refused(place, f"this data needs files of yours: {YOURS[word]} FILE")
        if word == HELD_OUT and given[HELD_OUT]:
            words.append("--held-out")
        words += map(str, given[word]) if word in given else [word]
    try:
        preparation = parse_preparation(words)
    except ValueError as error:
        raise plan.file.refused(place, error) from None
    while not (data / MANIFEST).is_file():
        with _lock(record) as mine:
            if not mine:
                time.sleep(WAIT_SECONDS)
            elif not (data / MANIFEST).is_file():
                files = {word: [str(file.resolve()) for file in given[word]] for word in given}
                made_of = {PREPARE: list(part.prepare), **files}
                write_sealed(record / MADE_OF, made_of)
                with _log(record, f"data prepare {' '.join(words)} --out {data}"):
                    with says_how_to_resume():
                        prepared = preparation.prepare(data, progress=preparing_progress())
                    print("\n".join(prepared.lines))
    _check_made_of(plan, part, given)


def check_cells(plan: Plan) -> None:
    """Reject rows that cannot be trained or measured, before any is trained."""
    parents: dict[str, Parent] = {}
    for row in plan.rows:
        run = plan.run(row)
        if is_there(run / runs.CONFIG) and not row.waits_for_tuning:
            before = configs.load(run / runs.CONFIG)
            changed = configs.differences(before, row.with_config())
            for key, (old, new) in changed.items():
                if key not in configs.MAY_CHANGE and new != "auto":
                    raise ValueError(
                        f"{run}: was trained with {key} {old}, and the study now says {new}; "
                        "choose another folder"
                    )
        with plan.file.at(plan.file.place_of(row.family)):
            data, _, _ = open_data(row.with_config())
            if row.parent is not None:
                folder = row.parent.folder
                parents[folder] = parents.get(folder) or _opened(row.parent)
                check_data(parents[folder], data)
        check_measures(plan.file, row, _missing(run, row), data)


def _opened(record: ParentRecord) -> Parent:
    """The parent of a planned row; raises if it was changed since."""
    parent = open_parent(record.folder)
    if parent.sha256 != record.sha256:
        raise ValueError(f"{record.folder}: was changed after the study was planned")
    return parent


def run_cell(folder: Path, row: Row, say: Say) -> bool:
    """Train and measure a row, or resume it; false if another process holds its lock."""
    record = record_of(folder, row.run)
    with _lock(record) as mine:
        if not mine:
            return False
        _write_state(record, "begun")
        (record / ERROR).unlink(missing_ok=True)
        try:
            _run(folder / row.run, row, say, record)
        except Exception as error:
            if is_stopping():
                raise
            _write_state(record, "failed", error=one_line(error))
            write_file(record / ERROR, traceback.format_exc())
            raise
        _write_state(record, "done")
    return True


def _run(run: Path, row: Row, say: Say, record: Path) -> None:
    remove_leftovers(run.parent, of=run.name)
    if not run.exists():
        config = record / runs.CONFIG
        write_file(config, configs.dump(row.with_config()))
        say("training")
        parent = None if row.parent is None else _opened(row.parent)
        given = "" if parent is None else f" --from {parent.folder}"
        with _log(record, f"train {config}{given} --out {run}"):
            _end_if_stopped(train(configs.load(config), run, parent=parent, display=show_training))
    elif status(run).state != "finished":
        say("training, from where it stopped")
        with _log(record, f"train --resume {run}"):
            _end_if_stopped(resume(run, display=show_training))
    subject: Subject | None = None
    for name in _missing(run, row):
        say(name)
        with _log(record, f"{name} of {run}"):
            subject = subject or open_subject(run)  # once, whatever is measured
            measure(subject, name, row)


def _end_if_stopped(trained: Trained) -> None:
    """Exit if a signal came during the training session; such a cell is not measured now."""
    if trained.outcome.stopped_by is not None:
        sys.exit(128 + trained.outcome.stopped_by)


def _missing(run: Path, row: Row) -> list[str]:
    results = run / runs.RESULTS
    return [name for name in row.measure if not has_result(results, MEASURES[name], row.documents)]


def _damage(run: Path, measure: Sequence[str]) -> str | None:
    """What is wrong with the first result that is there and cannot be read."""
    results = run / runs.RESULTS
    for name in measure:
        if is_measured(results, MEASURES[name]):
            try:
                read_result(results, MEASURES[name])
                check_details(results, MEASURES[name])
            except ValueError as error:
                return one_line(error)
    return None


def run_prefill(plan: Plan, asked: PrefillSettings, say: Say) -> None:
    """Time prefill once for the whole study, and only while no cell is running."""
    path = plan.folder / PREFILL
    if is_there(path):
        return
    states = [state_of(plan.folder, row).state for row in plan.rows]
    with _lock(record_of(plan.folder, "prefill")) as mine:
        if not mine or "running" in states:
            say("not timed while another process is at work; start again when it is done")
            return
        if is_there(path):
            return
        say("timing")
        settings = PrefillBenchSettings(**asdict(asked))
        bench = bench_prefill(settings, progress=lambda case: to_stderr(f"{prefill_line(case)}\n"))
        if (warning := busy_warning(bench.provenance)) is not None:
            to_stderr(f"{warning}\n")
        write_sealed(path, bench.to_json())


def check_comparison(plan: Plan, part: str) -> None:
    """Reject a folder in the place of a part's comparison."""
    path = plan.folder / part / COMPARISON
    if path.is_dir() and not path.is_symlink():
        raise ValueError(f"{path}: a folder, in the place of a file; remove it")


def compare_part(plan: Plan, part: str) -> None:
    """Compare the models of a part of the plan by the measures that all of them have."""
    path = plan.folder / part / COMPARISON
    path.unlink(missing_ok=True)  # an older comparison is about other runs
    done = [row for row in plan.rows if row.part == part and is_done(plan.folder, row)]
    is_compared = any(MEASURES[name].units is not None for row in done for name in row.measure)
    if len({row.arm for row in done}) < 2 or not is_compared:
        return
    rows = Table(tuple(read_run(plan.run(row), arm=row.arm) for row in done))
    write_sealed(path, encode(rows.compare(seed=COMPARISON_SEED)))


@contextlib.contextmanager
def _lock(record: Path) -> Iterator[bool]:
    """Try to take a lock; yields whether this process holds it. The lock ends with the process."""
    record.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            with naming(record / LOCK):
                stack.enter_context(locked(record))
        except ValueError:
            yield False
        else:
            yield True


def _write_state(record: Path, state: State, *, error: str | None = None) -> None:
    write_sealed(record / STATE, asdict(_CellRecord(state=state, error=error)))


R = TypeVar("R")


def _read_record(cls: type[R], path: Path, *, field: str | None = None) -> R | None:
    """A file of a cell's record, read strictly; None if there is no such file.

    With `field`, the whole content of the file is the value of this field.
    """
    if not is_there(path):
        return None
    try:
        written = read_sealed(path, may_lack_seal=lambda _: True)  # version 0.1.0 wrote none
        return from_dict(cls, written if field is None else {field: written})
    except ValueError as error:
        said = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"{path}: {said}; remove this file to run its cell again") from None


@contextlib.contextmanager
def _log(record: Path, what: str) -> Iterator[None]:
    """Log a task with the times of its start and end; stdout goes to the log as well."""
    unbuffered = (record / LOG).open("ab", buffering=0)  # closing it cannot fail a second time
    log = io.TextIOWrapper(unbuffered, encoding="utf-8", errors="backslashreplace")
    log.reconfigure(write_through=True)
    with log, contextlib.redirect_stdout(log):
        with naming(record / LOG):
            print(f"{now()}  {what}", flush=True)
        yield
        with naming(record / LOG):
            print(f"{now()}  done", flush=True)
