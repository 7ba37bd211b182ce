"""A study's results, read only from its files."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mixerloop import runs, study_folder
from mixerloop.config import Documents
from mixerloop.evaluation.comparison_result import Comparison, judged_together
from mixerloop.files import is_there
from mixerloop.history import Record, read_history
from mixerloop.measures import MEASURES
from mixerloop.result_files import is_measured, is_of, read_result, read_typed
from mixerloop.results import Result
from mixerloop.study_folder import PlannedArm, PlannedCell, PlannedPart, StudyPlan

R = TypeVar("R", bound=Result)


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """The held-out NLL at a step of training."""

    tokens: int
    """Tokens trained on up to this step."""
    held_out_nll: float


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """The results and the training of one seed."""

    path: Path
    seed: int | None
    results: Mapping[str, Result]
    """By the name of the measure."""
    curve: list[CurvePoint]
    seconds: float | None
    """Seconds of training."""
    tokens: int | None
    """Tokens trained on."""
    provenance: Mapping[str, Any]
    """The provenance of training, as JSON in the format of the run directory."""


@dataclass(frozen=True, kw_only=True)
class ArmResults:
    """A model of a part, and its runs."""

    plan: PlannedArm
    runs: list[RunResults]

    @property
    def name(self) -> str:
        """The model's name in the plan."""
        return self.plan.name

    def measured(self, kind: type[R]) -> list[R]:
        """The result of a type from each run that has such a result."""
        return [
            result for run in self.runs for result in run.results.values() if type(result) is kind
        ]


@dataclass(frozen=True, kw_only=True)
class PartResults:
    """The models of a part and their comparison."""

    plan: PlannedPart
    arms: list[ArmResults]
    """Models with at least one finished run."""
    comparison: Comparison | None
    missing: list[str]
    """Cells that are not trained, or not measured as planned."""

    @property
    def name(self) -> str:
        """The part's name in the plan."""
        return self.plan.name

    def measured(self, kind: type[R]) -> list[R]:
        """The results of a type from the runs of all models."""
        return [result for arm in self.arms for result in arm.measured(kind)]


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
    parts: list[PartResults]
    prefills: Mapping[str, PrefillTimes]
    """By the name of each study that timed prefill; the name of a single study is empty."""


def read_study(folder: Path) -> StudyResults:
    """Read the folder of a study, finished or not."""
    plan = study_folder.read_plan(folder)
    parts = {part.name for part in plan.parts}
    for name in (*parts, *(cell.name for cell in plan.cells)):
        of, _, run = name.rpartition("/")
        if run.startswith(".") or (of or run) not in parts or of.startswith("."):
            raise ValueError(f"{folder / study_folder.PLAN}: '{name}' is no name of this study's")
    _check_arms(plan, folder / study_folder.PLAN)
    comparisons = {part.name: _comparison(folder, part.name) for part in plan.parts}
    prefill = _prefill(folder / study_folder.PREFILL)
    results = gather(plan, folder, comparisons)
    return results if prefill is None else dataclasses.replace(results, prefills={"": prefill})


def _check_arms(plan: StudyPlan, path: Path) -> None:
    """Raise if a cell names no arm of its part, or if the cost of an arm is not known."""
    arms = {part.name: {arm.name for arm in part.arms} for part in plan.parts}
    for cell in plan.cells:
        if cell.arm not in arms.get(cell.part, ()):
            raise ValueError(f"{path}: no model '{cell.arm}' in part '{cell.part}'")
    for arm in (arm for part in plan.parts for arm in part.arms):
        if not {"mixer", "ffn"} <= arm.macs.keys():
            raise ValueError(f"{path}: model '{arm.name}' lacks the cost of a mixer or an ffn")


def joined(studies: Mapping[str, StudyResults]) -> StudyResults:
    """Several studies as one; the name of a part then begins with the name of its study."""
    parts = [
        dataclasses.replace(
            part,
            plan=dataclasses.replace(
                part.plan,
                name=f"{name}-{part.name}",
                family=f"{name}-{part.plan.family or part.name}",
            ),
            missing=[f"{name}/{cell}" for cell in part.missing],
        )
        for name, study in studies.items()
        for part in study.parts
    ]
    return StudyResults(
        title=" and ".join(study.title for study in studies.values()),
        about="\n\n".join(study.about for study in studies.values()),
        parts=parts,
        prefills={
            f"{name}, ": prefill
            for name, study in studies.items()
            for prefill in study.prefills.values()
        },
    )


def judged_on_one_page(study: StudyResults) -> StudyResults:
    """The results, with verdicts that are corrected for all differences of all parts."""
    compared = [part.comparison for part in study.parts if part.comparison is not None]
    judged = iter(judged_together(compared))
    parts = [
        part if part.comparison is None else dataclasses.replace(part, comparison=next(judged))
        for part in study.parts
    ]
    return dataclasses.replace(study, parts=parts)


def gather(
    plan: StudyPlan, folder: Path, comparisons: Mapping[str, Comparison | None]
) -> StudyResults:
    """The results of all runs in a plan, with the comparisons that still apply."""
    parts = []
    for part in plan.parts:
        cells = [cell for cell in plan.cells if cell.part == part.name]
        run_results = {cell.name: _run(folder, cell, part.documents) for cell in cells}
        arms = [
            ArmResults(
                plan=arm,
                runs=[
                    run
                    for cell in cells
                    if cell.arm == arm.name and (run := run_results[cell.name]) is not None
                ],
            )
            for arm in part.arms
        ]
        parts.append(
            PartResults(
                plan=part,
                arms=[arm for arm in arms if arm.runs],
                comparison=_of_these(comparisons.get(part.name), run_results),
                missing=[name for name, run in run_results.items() if run is None],
            )
        )
    return StudyResults(title=plan.title, about=plan.about, parts=parts, prefills={})


def _of_these(
    comparison: Comparison | None, run_results: Mapping[str, RunResults | None]
) -> Comparison | None:
    """The comparison, or None if one of its runs is missing."""
    names = {run.path.name for run in run_results.values() if run is not None}
    if comparison is None:
        return None
    compared = {Path(run).name for arm in comparison.arms for run in arm.runs}
    return comparison if compared and compared <= names else None


def _run(folder: Path, cell: PlannedCell, documents: Documents | None) -> RunResults | None:
    """The results of a cell; None while any result that the plan asks for is missing."""
    path = folder / cell.name
    results = {
        name: result
        for name, measure in sorted(MEASURES.items())
        if is_measured(path / runs.RESULTS, measure)
        and is_of(result := read_result(path / runs.RESULTS, measure), documents)
    }
    if not results or not results.keys() >= set(cell.measure):
        return None
    metrics = _history(path, runs.METRICS, "tokens")
    timing = _history(path, runs.TIMING, "seconds")
    return RunResults(
        path=path,
        seed=cell.seed,
        results=results,
        curve=[
            CurvePoint(tokens=line["tokens"], held_out_nll=line["held_out_nll"])
            for line in metrics
            if "held_out_nll" in line
        ],
        seconds=sum(line["seconds"] for line in timing) if timing else None,
        tokens=metrics[-1]["tokens"] if metrics else None,
        provenance=runs.read_provenance(path) if is_there(path / runs.PROVENANCE) else {},
    )


def _history(run: Path, name: str, key: str) -> list[Record]:
    """The records of a run, all of which must have a key."""
    records = read_history(run, name)
    for record in records:
        if key not in record:
            raise ValueError(f"{run / name}: damaged, step {record['step']} has no {key}")
    return records


def _comparison(folder: Path, part: str) -> Comparison | None:
    path = folder / part / study_folder.COMPARISON
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
