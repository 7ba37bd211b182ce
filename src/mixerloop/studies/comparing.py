"""`compare_runs`: a comparison of runs outside a study, by their architecture."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mixerloop import config as configs
from mixerloop.evaluation.comparison_result import Comparison
from mixerloop.parsing import checked
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
    return Table(tuple(named)).compare(seed=seed)


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
    one, other = first.origin, second.origin
    if one is None or other is None or first.seed is None or first.seed == second.seed:
        return False
    if (one.trained_on, first.schedule, one.parent) != (
        other.trained_on,
        second.schedule,
        other.parent,
    ):
        return False
    train = one.config.train
    is_in_seconds = train is not None and train.seconds is not None  # runs end at any step
    if one.step != other.step and not is_in_seconds:
        return False
    aside = ASIDE | configs.may_change(one.config.model)
    return not configs.differences(one.config, other.config).keys() - aside
