"""Accuracy on a synthetic task by difficulty, also for sequences longer than any of training."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mixerloop.evaluation.hops_result import HOPS, HopsResult
from mixerloop.evaluation.task_result import GroupAccuracy, TaskResult
from mixerloop.intervals import share_over_runs
from mixerloop.reports.elements import Element, Table
from mixerloop.reports.figure import Figure, Point, data, dressed, model_color
from mixerloop.studies.table import Table as StudyTable

if TYPE_CHECKING:
    import altair as alt

WIDTH, HEIGHT = 350, 240
GUESS = "a guess"
Groups = Sequence[GroupAccuracy]
SPLITS = ("as trained", "longer than trained")


def by_difficulty(part: StudyTable) -> Iterator[Element]:
    """A figure, and a table for each split; nothing for a part without a task."""
    rows = list(_rows(part))
    if not rows:
        return
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    tasks = part.results(TaskResult)
    unit = tasks[0].group_name if tasks else HOPS
    chart = partial(_chart, rows, models, unit)
    yield Figure(f"{part.first.part}-accuracy", f"Accuracy by {unit}", rows, chart)
    if not tasks:  # the table of results has columns for `hops`
        return
    for split in dict.fromkeys(str(row["split"]) for row in rows):
        of_split = [row for row in rows if row["split"] == split]
        groups = list(dict.fromkeys(row["group"] for row in of_split))
        cells = {(row["model"], row["group"]): _shown(row) for row in of_split}
        yield Table(
            f"Accuracy by {unit}, {split}",
            ["model", *map(str, groups)],
            [[model, *(cells.get((model, group), "") for group in groups)] for model in models],
        )


def _rows(part: StudyTable) -> Iterator[Point]:
    guesses: dict[tuple[str, int], float] = {}
    for name, arm in part.arms.items():
        for split, of_runs in zip(SPLITS, _accuracies(arm), strict=True):
            for group, of_seeds in _by_group(of_runs).items():
                guesses[split, group] = of_seeds[0].guess
                mean = share_over_runs([one.accuracy for one in of_seeds])
                yield {
                    "model": name,
                    "split": split,
                    "group": group,
                    "accuracy": mean.value,
                    "low": mean.lower,
                    "high": mean.upper,
                }
    for (split, group), guess in guesses.items():
        same = {"accuracy": guess, "low": guess, "high": guess}
        yield {"model": GUESS, "split": split, "group": group, **same}


def _accuracies(arm: StudyTable) -> tuple[list[Groups], list[Groups]]:
    """The accuracy of each run in both splits; by the measure `hops` if there is no `task`."""
    results = arm.results(TaskResult)
    if not results:
        return [_as_groups(result) for result in arm.results(HopsResult)], []
    return (
        [result.accuracy_by_group for result in results],
        [result.longer_accuracy_by_group for result in results],
    )


def _as_groups(result: HopsResult) -> Groups:
    return [
        GroupAccuracy(
            group=hop.hops, questions=hop.questions, accuracy=hop.accuracy, guess=hop.guess
        )
        for hop in result.accuracy_by_hop
    ]


def _by_group(of_runs: Sequence[Groups]) -> dict[int, list[GroupAccuracy]]:
    found: dict[int, list[GroupAccuracy]] = {}
    for accuracies in of_runs:
        for one in accuracies:
            found.setdefault(one.group, []).append(one)
    return found


def _shown(row: Point) -> str:
    if row["model"] == GUESS:
        return f"{row['accuracy']:.3f}"
    return f"{row['accuracy']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def _chart(rows: list[Point], models: list[str], unit: str) -> "alt.TopLevelMixin":
    import altair as alt

    panels = []
    splits = dict.fromkeys(str(row["split"]) for row in rows)
    for split in splits:
        of_split = [row for row in rows if row["split"] == split]
        base = alt.Chart(data(of_split)).encode(
            x=alt.X("group:O", title=unit, axis=alt.Axis(labelAngle=0)),
            color=model_color(models),
        )
        line = base.mark_line(point=alt.OverlayMarkDef(size=36)).encode(
            y=alt.Y("accuracy:Q", title="answered right", scale=alt.Scale(domain=[0, 1])),
            strokeDash=alt.condition(
                alt.datum["model"] == GUESS, alt.value([5, 4]), alt.value([1, 0])
            ),
            tooltip=["model:N", "group:O", "accuracy:Q", "low:Q", "high:Q"],
        )
        interval = base.mark_rule(strokeWidth=2, opacity=0.4).encode(y="low:Q", y2="high:Q")
        panel = alt.layer(interval, line)
        sizes = {"width": WIDTH, "title": split} if len(splits) > 1 else {"width": 2 * WIDTH}
        panels.append(panel.properties(height=HEIGHT, **sizes))
    return dressed(alt.hconcat(*panels))
