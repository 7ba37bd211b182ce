"""The comparison of a table's arms, and of runs outside a study by their architecture."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from mixerloop import config as configs
from mixerloop.evaluation.comparison_result import (
    Arm,
    Comparison,
    Pair,
    TaskPart,
    judged_together,
    task_warnings,
)
from mixerloop.evaluation.difference import PAIRS_FROM, Scores, difference
from mixerloop.evaluation.units import Units
from mixerloop.measures import MEASURES, Measure, score_named
from mixerloop.parsing import checked
from mixerloop.results import result_provenance
from mixerloop.studies.reading import read_run
from mixerloop.studies.table import Row, Table

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
    if arms is not None and len(arms) != len(paths):
        raise ValueError(f"{len(paths)} runs, and {len(arms)} names of architectures")
    rows = [read_run(Path(path)) for path in paths]
    arms = architectures(rows) if arms is None else arms
    named = (replace(row, arm=arm) for row, arm in zip(rows, arms, strict=True))
    return compare(Table(tuple(named)), seed=seed)


def architectures(rows: Sequence[Row]) -> list[str]:
    """The name of each row's architecture: rows whose configs differ in the seed only share one.

    If all rows are of one architecture, every row is named for itself.
    """
    groups: list[list[int]] = []
    for index, row in enumerate(rows):
        for group in groups:
            if all(_differ_by_seed(rows[member], row) for member in group):
                group.append(index)
                break
        else:
            groups.append([index])
    if len(groups) == 1:
        groups = [[index] for index in groups[0]]
    schedules = [rows[group[0]].schedule for group in groups]
    names = [rows[group[0]].place.name for group in groups]
    arms = [""] * len(rows)
    for group, schedule, name in zip(groups, schedules, names, strict=True):
        first = min((rows[n] for n in group), key=lambda row: (row.seed is None, row.seed or 0))
        alone = name if names.count(name) == 1 else str(first.path)
        for index in group:
            arms[index] = schedule if schedules.count(schedule) == 1 else alone
    return arms


def _differ_by_seed(first: Row, second: Row) -> bool:
    one, other = first.config, second.config
    if one is None or other is None or first.seed is None or first.seed == second.seed:
        return False
    if _began_as(first) != _began_as(second):
        return False
    is_in_seconds = one.train is not None and one.train.seconds is not None  # ends at any step
    if first.step != second.step and not is_in_seconds:
        return False
    aside = ASIDE | configs.MAY_CHANGE
    return not configs.differences(one, other).keys() - aside


def _began_as(row: Row) -> tuple[str | None, str, str | None]:
    return row.trained_on, row.schedule, None if row.parent is None else row.parent.sha256


def compare(table: Table, *, seed: int = 0) -> Comparison:
    """`Table.compare`."""
    rows = table.rows
    if len(rows) < 2:
        raise ValueError("a comparison needs two runs or more")
    _check_different(rows)
    units, not_compared = _units_of_all(rows)
    if not units:
        compared = [measure.name for measure in MEASURES.values() if measure.units is not None]
        raise ValueError(
            "; ".join(not_compared)
            or "no measure was taken of all these runs; measure each of them by one of "
            f"{', '.join(compared)}"
        )
    scores: dict[str, Scores] = {}
    for name, of_rows in units.items():
        _check_agree(rows, of_rows, MEASURES[name])
        scores |= type(of_rows[0]).scores(of_rows, seed=seed)
    places = {
        name: sorted(
            (n for n, row in enumerate(rows) if row.arm == name),
            key=lambda n: (rows[n].seed is None, rows[n].seed),
        )
        for name in table.by("arm")
    }
    arms = {name: _arm(rows, name, at, scores) for name, at in places.items()}
    pairs = tuple(
        _pair(arms[first], arms[second], places, scores, units, seed=seed)
        for first, second in combinations(arms, 2)
    )
    comparison = Comparison(
        arms=tuple(arms.values()),
        pairs=pairs,
        warnings=(*not_compared, *_common_warnings(rows, units)),
        provenance=result_provenance(seed=seed),
    )
    return judged_together([comparison])[0]


def _arm(rows: Sequence[Row], name: str, at: Sequence[int], scores: Mapping[str, Scores]) -> Arm:
    return Arm(
        name=name,
        runs=tuple(str(rows[n].path) for n in at),
        seeds=tuple(rows[n].seed for n in at),
        scores={score: float(of.points[list(at)].mean()) for score, of in scores.items()},
    )


def _model(row: Row) -> tuple[str | None, str]:
    result = next(iter(row.results.values()))
    return result.provenance.checkpoint_sha256, result.schedule


def _check_different(rows: Sequence[Row]) -> None:
    for first, second in combinations(rows, 2):
        if _model(first) == _model(second):
            raise ValueError(f"{first.path} and {second.path} are the same model")


def _units_of_all(rows: Sequence[Row]) -> tuple[dict[str, list[Units[Any]]], list[str]]:
    """The units of each measure that all rows have, and why other such units are not compared."""
    units: dict[str, list[Units[Any]]] = {}
    not_compared = []
    for name in MEASURES:
        if not all(name in row.units for row in rows):
            continue
        reasons = [(row.path, row.units[name].not_compared_because()) for row in rows]
        reason = next((f"{path}: {why}" for path, why in reasons if why), None)
        if reason is None:
            units[name] = [row.units[name] for row in rows]
        else:
            not_compared.append(reason)
    return units, not_compared


def _check_agree(rows: Sequence[Row], units: Sequence[Units[Any]], measure: Measure) -> None:
    """Reject rows whose settings or units differ from those of the first row."""
    first = units[0]
    for row, of_row in zip(rows, units, strict=True):
        for key, value in first.settings.items():
            if of_row.settings[key] != value:
                raise ValueError(
                    f"{row.path}: {measure.label} was measured with {key} {of_row.settings[key]}, "
                    f"and of {rows[0].path} with {value}"
                )
    for row, of_row in zip(rows, units, strict=True):
        if (reason := of_row.mismatch(first)) is not None:
            raise ValueError(f"{row.path}: {reason} {rows[0].path}")


def _common_warnings(
    rows: Sequence[Row], units: Mapping[str, Sequence[Units[Any]]]
) -> Iterator[str]:
    for name, measure in MEASURES.items():
        missing = [row for row in rows if name not in row.units]
        is_expected = measure.warn_if_unmeasured or len(missing) < len(rows)
        if missing and measure.units is not None and is_expected:
            yield f"{measure.label} is left out: it was not measured of {missing[0].path}"
    for of_rows in units.values():
        yield from of_rows[0].warnings()


def _pair(
    first: Arm,
    second: Arm,
    places: Mapping[str, Sequence[int]],
    scores: Mapping[str, Scores],
    units: Mapping[str, Sequence[Units[Any]]],
    *,
    seed: int,
) -> Pair:
    at, other = places[first.name], places[second.name]
    same_seeds = None not in first.seeds and first.seeds == second.seeds
    differences = {
        name: difference(
            of.of(list(at)),
            of.of(list(other)),
            same_seeds=same_seeds,
            over=score_named(name).resampled,
            seed=seed,
        )
        for name, of in scores.items()
    }
    tasks: dict[str, TaskPart] = {}
    for of_rows in units.values():
        tasks |= type(of_rows[0]).task_parts(of_rows, at, other)
    return Pair(
        first=first.name,
        second=second.name,
        seeds=_seeds_in_words(len(at), len(other), same_seeds=same_seeds),
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
