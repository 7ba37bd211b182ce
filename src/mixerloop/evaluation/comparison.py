"""Compare architectures: differences of their scores, verdicts, and the part of each task."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from mixerloop import config as configs
from mixerloop.config import RunConfig
from mixerloop.evaluation.comparison_result import (
    Arm,
    Comparison,
    Pair,
    TaskPart,
    judged_together,
)
from mixerloop.evaluation.difference import PAIRS_FROM, Scores, difference
from mixerloop.evaluation.measured_run import MeasuredRun, read_measured_run
from mixerloop.evaluation.units import Units
from mixerloop.measures import MEASURES, Measure, score_named
from mixerloop.parsing import checked
from mixerloop.results import result_provenance

ONE_TASK_IS_MOST = 0.5
"""A warning names a task whose share of a difference is above this."""
NAMED_TASKS = 5
"""Tasks that a warning lists by name."""
ASIDE = {"train.seed", "train.form", "train.evaluate_every", "train.evaluate_windows"}
"""Config keys in which runs of one architecture may differ, besides those that may change.

The data path is among them, because the data is compared by its hash.
"""


@checked
def compare_runs(
    paths: Sequence[Path | str], *, arms: Sequence[str] | None = None, seed: int = 0
) -> Comparison:
    """Compare runs, or results in other folders, by the measures that all of them have.

    `arms` names the architecture of each run. By default runs are one architecture if their configs
    differ in the random seed only.
    """
    return compare([read_measured_run(Path(path)) for path in paths], arms=arms, seed=seed)


def compare(
    runs: Sequence[MeasuredRun], *, arms: Sequence[str] | None = None, seed: int = 0
) -> Comparison:
    """Compare models that were measured on the same units; `arms` as in `compare_runs`."""
    if len(runs) < 2:
        raise ValueError("a comparison needs two runs or more")
    _check_different(runs)
    groups = group_by_architecture(runs) if arms is None else group_by_name(runs, arms)
    units, not_compared = _units_of_all(runs)
    if not units:
        compared = [measure.name for measure in MEASURES.values() if measure.units is not None]
        raise ValueError(
            "; ".join(not_compared)
            or "no measure was taken of all these runs; measure each of them by one of "
            f"{', '.join(compared)}"
        )
    scores: dict[str, Scores] = {}
    for name, of_runs in units.items():
        _check_agree(runs, of_runs, MEASURES[name])
        scores |= type(of_runs[0]).scores(of_runs, seed=seed)
    comparison = Comparison(
        arms=tuple(_arm(group, runs, scores) for group in groups),
        pairs=tuple(
            _pair(first, second, scores, units, seed=seed)
            for first, second in combinations(groups, 2)
        ),
        warnings=(*not_compared, *_common_warnings(runs, units)),
        provenance=result_provenance(seed=seed),
    )
    return judged_together([comparison])[0]


def _check_different(runs: Sequence[MeasuredRun]) -> None:
    for first, second in combinations(runs, 2):
        if (first.checkpoint, first.schedule) == (second.checkpoint, second.schedule):
            raise ValueError(f"{first.path} and {second.path} are the same model")


def _units_of_all(
    runs: Sequence[MeasuredRun],
) -> tuple[dict[str, list[Units[Any]]], list[str]]:
    """The units of each measure that all runs have, and why other such units are not compared."""
    units: dict[str, list[Units[Any]]] = {}
    not_compared = []
    for name in MEASURES:
        if not all(name in run.units for run in runs):
            continue
        reasons = [(run.path, run.units[name].not_compared_because()) for run in runs]
        reason = next((f"{path}: {why}" for path, why in reasons if why), None)
        if reason is None:
            units[name] = [run.units[name] for run in runs]
        else:
            not_compared.append(reason)
    return units, not_compared


def _check_agree(
    runs: Sequence[MeasuredRun], units: Sequence[Units[Any]], measure: Measure
) -> None:
    """Reject runs whose settings or units differ from those of the first run."""
    first = units[0]
    for run, of_run in zip(runs, units, strict=True):
        for key, value in first.settings.items():
            if of_run.settings[key] != value:
                raise ValueError(
                    f"{run.path}: {measure.label} was measured with {key} {of_run.settings[key]}, "
                    f"and of {runs[0].path} with {value}"
                )
    for run, of_run in zip(runs, units, strict=True):
        if (reason := of_run.mismatch(first)) is not None:
            raise ValueError(f"{run.path}: {reason} {runs[0].path}")


def _common_warnings(
    runs: Sequence[MeasuredRun], units: Mapping[str, Sequence[Units[Any]]]
) -> Iterator[str]:
    for name, measure in MEASURES.items():
        missing = [run for run in runs if name not in run.units]
        is_expected = measure.warn_if_unmeasured or len(missing) < len(runs)
        if missing and measure.units is not None and is_expected:
            yield f"{measure.label} is left out: it was not measured of {missing[0].path}"
    for of_runs in units.values():
        yield from of_runs[0].warnings()


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one architecture, which differ in their random seed."""

    name: str
    runs: tuple[int, ...]
    """Indices of the runs, in the order of their seeds."""
    seeds: tuple[int | None, ...]


def group_by_name(runs: Sequence[MeasuredRun], arms: Sequence[str]) -> list[Group]:
    """Group runs by the name of their architecture, which is given for each run."""
    if len(arms) != len(runs):
        raise ValueError(f"{len(runs)} runs, and {len(arms)} names of architectures")
    groups = []
    for name in dict.fromkeys(arms):
        members = [index for index, arm in enumerate(arms) if arm == name]
        members.sort(key=lambda index: (runs[index].seed is None, runs[index].seed))
        seeds = tuple(runs[index].seed for index in members)
        groups.append(Group(name=name, runs=tuple(members), seeds=seeds))
    return groups


def group_by_architecture(runs: Sequence[MeasuredRun]) -> list[Group]:
    """Group runs whose configs differ in the random seed only.

    If that gives a single group, every run becomes a group of its own.
    """
    members: list[list[int]] = []
    for index, run in enumerate(runs):
        for group in members:
            if all(_differ_by_seed(runs[member], run) for member in group):
                group.append(index)
                break
        else:
            members.append([index])
    if len(members) == 1:
        members = [[index] for index in members[0]]
    schedules = [runs[group[0]].schedule for group in members]
    names = [runs[group[0]].path.name for group in members]
    groups = []
    for number, group in enumerate(members):
        group.sort(key=lambda index: (runs[index].seed is None, runs[index].seed))
        path = runs[group[0]].path
        if schedules.count(schedules[number]) == 1:
            name = schedules[number]
        else:
            name = names[number] if names.count(names[number]) == 1 else str(path)
        seeds = tuple(runs[index].seed for index in group)
        groups.append(Group(name=name, runs=tuple(group), seeds=seeds))
    return groups


def _differ_by_seed(first: MeasuredRun, second: MeasuredRun) -> bool:
    if (
        first.config is None
        or second.config is None
        or first.seed is None
        or first.seed == second.seed
    ):
        return False
    for key in ("trained_on", "schedule", "parent"):
        if getattr(first, key) != getattr(second, key):
            return False
    if first.step != second.step and not _is_in_seconds(first.config):
        return False
    aside = ASIDE | configs.MAY_CHANGE
    return not configs.differences(first.config, second.config).keys() - aside


def _is_in_seconds(config: RunConfig) -> bool:
    """Whether the training budget is a time, so that runs may end at different steps."""
    return config.train is not None and config.train.seconds is not None


def _arm(group: Group, runs: Sequence[MeasuredRun], scores: Mapping[str, Scores]) -> Arm:
    return Arm(
        name=group.name,
        runs=tuple(str(runs[index].path) for index in group.runs),
        seeds=group.seeds,
        scores={
            name: float(of_runs.points[list(group.runs)].mean()) for name, of_runs in scores.items()
        },
    )


def _pair(
    first: Group,
    second: Group,
    scores: Mapping[str, Scores],
    units: Mapping[str, Sequence[Units[Any]]],
    *,
    seed: int,
) -> Pair:
    same_seeds = None not in first.seeds and first.seeds == second.seeds
    differences = {
        name: difference(
            of_runs.of(first.runs),
            of_runs.of(second.runs),
            same_seeds=same_seeds,
            over=score_named(name).resampled,
            seed=seed,
        )
        for name, of_runs in scores.items()
    }
    tasks: dict[str, TaskPart] = {}
    for of_runs in units.values():
        tasks |= type(of_runs[0]).task_parts(of_runs, first.runs, second.runs)
    return Pair(
        first=first.name,
        second=second.name,
        seeds=_seeds_in_words(len(first.runs), len(second.runs), same_seeds=same_seeds),
        measures=differences,
        tasks=tasks,
        warnings=tuple(task_warnings(tasks)),
    )


def _seeds_in_words(first: int, second: int, *, same_seeds: bool) -> str:
    if first == second == 1:
        return "one seed each: the interval is over examples, and does not cover other seeds"
    if same_seeds and first >= PAIRS_FROM:
        return f"{first} seeds, in pairs: the interval is over seeds and examples"
    if 1 in (first, second):
        return f"{first} and {second} seeds: the one is taken to vary as the others do"
    return f"{first} and {second} seeds: the interval is over seeds and examples"


def task_warnings(tasks: Mapping[str, TaskPart]) -> Iterator[str]:
    """Warn of a task that makes most of a difference, and of tasks where guessing does as well."""
    for label, part in tasks.items():
        if part.share is not None and part.share > ONE_TASK_IS_MOST and len(tasks) > 1:
            total = sum(task.contribution for task in tasks.values())
            also = ", where both are below the most frequent answer" * part.below_majority
            yield (
                f"{label} alone makes {100 * part.contribution:+.2f} of the difference of "
                f"{100 * total:+.2f}{also}"
            )
    if below := [label for label, part in tasks.items() if part.below_majority]:
        some = ", ".join(below[:NAMED_TASKS]) + ", ..." * (len(below) > NAMED_TASKS)
        yield (
            f"both are no better than always the most frequent answer on {len(below)} of "
            f"{len(tasks)} tasks: {some}"
        )
