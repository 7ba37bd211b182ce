"""A study's results, read only from its files."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mixerloop.evaluation.comparison_result import Comparison, judged_together
from mixerloop.files import is_there
from mixerloop.result_files import read_typed
from mixerloop.studies.reading import filled, read_plan
from mixerloop.studies.table import Table
from mixerloop.study_folder import COMPARISON, PREFILL


@dataclass(frozen=True, kw_only=True)
class PrefillCase:
    """Prefill of one size and batch, as `mixerloop bench prefill` times it."""

    size: str
    batch: int
    length: int
    """Tokens of a prompt."""
    milliseconds: dict[str, tuple[float, float, float]]
    """By loop: the median and the quartiles."""
    mixer_over_full: float
    """Tokens per second of the mixer loop over those of the full loop."""
    mixer_over_full_quartiles: tuple[float, float]
    flop_limit: float
    """The same ratio from the work of the projections alone."""


@dataclass(frozen=True, kw_only=True)
class PrefillTimes:
    """The content of prefill.json."""

    cases: tuple[PrefillCase, ...]
    provenance: dict[str, Any]
    """As JSON: the format of `mixerloop bench`."""


@dataclass(frozen=True, kw_only=True)
class StudyResults:
    """Everything that a report shows of one study, or of several studies."""

    title: str
    about: str
    table: Table
    prefills: Mapping[str, PrefillTimes]
    """By the name of each study that timed prefill; the name of a single study is empty."""


def read_study(folder: Path) -> StudyResults:
    """Read the folder of a study, finished or not."""
    plan = read_plan(folder)
    compared = {
        part: _comparison(folder, part) for part in dict.fromkeys(r.part for r in plan.rows)
    }
    prefill = _prefill(folder / PREFILL)
    return StudyResults(
        title=plan.title,
        about=plan.about,
        table=with_comparisons(Table(tuple(filled(row, folder) for row in plan.rows)), compared),
        prefills={} if prefill is None else {"": prefill},
    )


def with_comparisons(table: Table, comparisons: Mapping[str, Comparison | None]) -> Table:
    """A table with the comparisons of its parts, except those of runs that are missing now."""
    has = {(row.part, row.arm, row.seed) for row in table.filled}
    still = {
        part: comparison
        for part, comparison in comparisons.items()
        if comparison is not None
        and (runs := {(part, arm.name, seed) for arm in comparison.arms for seed in arm.seeds})
        and runs <= has
    }
    return replace(table, comparisons=still)


def joined(studies: Mapping[str, StudyResults]) -> StudyResults:
    """Several studies as one; the name of a part then begins with the name of its study."""
    rows = (
        replace(
            row,
            part=f"{name}-{row.part}",
            family=f"{name}-{row.family}",
            run=f"{name}/{row.run}",
        )
        for name, study in studies.items()
        for row in study.table
    )
    comparisons = {
        f"{name}-{part}": comparison
        for name, study in studies.items()
        for part, comparison in study.table.comparisons.items()
    }
    return StudyResults(
        title=" and ".join(study.title for study in studies.values()),
        about="\n\n".join(study.about for study in studies.values()),
        table=Table(tuple(rows), comparisons),
        prefills={
            f"{name}, ": prefill
            for name, study in studies.items()
            for prefill in study.prefills.values()
        },
    )


def judged_on_one_page(study: StudyResults) -> StudyResults:
    """The results, with verdicts that are corrected for all differences of all parts."""
    compared = study.table.comparisons
    judged = dict(zip(compared, judged_together(list(compared.values())), strict=True))
    return replace(study, table=replace(study.table, comparisons=judged))


def _comparison(folder: Path, part: str) -> Comparison | None:
    path = folder / part / COMPARISON
    if not is_there(path):
        return None
    again = f"compare again: mixerloop study STUDY --out {folder}"
    comparison = read_typed(Comparison, path, again=again)
    scores = {arm.name: set(arm.scores) for arm in comparison.arms if arm.runs}
    compared = {tuple(pair.measures) for pair in comparison.pairs}
    named = {name for pair in comparison.pairs for name in (pair.first, pair.second)}
    if len(compared) != 1 or any(set(*compared) - scores.get(name, set()) for name in named):
        raise ValueError(f"{path}: not a comparison of its own models; {again}")
    return comparison


def _prefill(path: Path) -> PrefillTimes | None:
    if not is_there(path):
        return None
    again = f"remove it and time again: mixerloop study STUDY --out {path.parent}"
    times = read_typed(PrefillTimes, path, again=again)
    if len({tuple(case.milliseconds) for case in times.cases}) != 1:
        raise ValueError(f"{path}: no cases, or cases of different loops; {again}")
    return times
