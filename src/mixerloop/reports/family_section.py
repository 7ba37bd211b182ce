"""A part of the study file in all its sizes and budgets: curves, crossings and sweeps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from mixerloop.evaluation.nll_result import NllResult
from mixerloop.reports.crossings import Crossing, Curve, crossing, crossing_text
from mixerloop.reports.elements import Element, Findings, Paragraph, Table
from mixerloop.reports.figure import Figure, Row, data, dressed, model_color
from mixerloop.reports.student_t import over_runs
from mixerloop.reports.study_results import ArmResults, PartResults
from mixerloop.results import Estimate, PointEstimate

if TYPE_CHECKING:
    import altair as alt

WIDTH, HEIGHT = 250, 260
NLL = "nll"
SIZE_LEGEND = {"symbolType": "stroke", "symbolStrokeColor": "#59636e", "symbolStrokeWidth": 1.6}
CHOSEN = " *"
"""Marks the best value of a sweep."""


@dataclass(frozen=True)
class Family:
    """The parts of a plan that come from one part of the study file."""

    name: str
    parts: list[PartResults]
    """In the order of the plan, without those that tune."""
    tuning: list[PartResults]

    @property
    def is_grid(self) -> bool:
        """Whether there are several sizes or budgets."""
        return len(self.parts) > 1

    @property
    def has_budgets(self) -> bool:
        """Whether a size has several budgets."""
        return len({part.plan.size for part in self.parts}) < len(self.parts)


def families(parts: Sequence[PartResults]) -> list[Family]:
    """The families of a study, in the order of the plan."""
    by_name: dict[str, list[PartResults]] = {}
    for part in parts:
        by_name.setdefault(part.plan.family or part.name, []).append(part)
    return [
        Family(
            name,
            [part for part in of if not part.plan.is_tuning],
            [part for part in of if part.plan.is_tuning],
        )
        for name, of in by_name.items()
    ]


def over_budgets(family: Family) -> Iterator[Element]:
    """Curves against tokens, compute and time, and where they cross; nothing for a single part."""
    if not family.is_grid:
        return
    rows = list(_points(family))
    if not rows:
        return
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    gaps = list(_gaps(family))
    others = [name for name in models if not gaps or name != gaps[0]["reference"]]
    if not family.has_budgets:
        if gaps:
            title = f"What each model gains or loses against {gaps[0]['reference']}, by size"
            chart = partial(_sizes_chart, gaps, others)
            yield Figure(f"{family.name}-gaps", title, gaps, chart)
        return
    yield Figure(
        f"{family.name}-budgets",
        "Held-out NLL by budget; each point is the end of a run of its own",
        rows,
        partial(_budgets_chart, rows, models),
    )
    if gaps:
        yield Figure(
            f"{family.name}-gaps",
            f"What each model gains or loses against {gaps[0]['reference']}, by budget",
            gaps,
            partial(_gaps_chart, gaps, others),
        )
    crossings = list(_crossings(family))
    if crossings:
        yield Paragraph(
            "The order of two models can change with the budget. Between two budgets the NLL is "
            "taken to be a straight line over the logarithm of the tokens. Intervals are over "
            "seeds (Student's t), each at 95 % by itself. Nothing is said beyond the smallest and "
            "the largest budget."
        )
        yield Table(
            "Where models overtake each other",
            ["size", "models", "what happens", "resamples that cross once"],
            [
                [size or "", " and ".join(names), text, f"{found.share:.0%}"]
                for size, names, found, text in crossings
            ],
        )


def crossing_findings(family: Family) -> list[str]:
    """A sentence for each pair of models whose order changes."""
    return [
        f"{family.name}{'' if size is None else f', {size}'}: {text}"
        for size, _, found, text in _crossings(family)
        if found.tokens is not None
    ]


def _points(family: Family) -> Iterator[Row]:
    for part in family.parts:
        for arm in part.arms:
            runs = [run for run in arm.runs if run.tokens is not None and run.seconds is not None]
            nll = [_nll(arm, index) for index in range(len(arm.runs))]
            found = [estimate for estimate in nll if estimate is not None]
            if not runs or not found or runs[0].tokens is None:
                continue
            mean = over_runs(found)
            tokens = runs[0].tokens
            yield {
                "model": arm.name,
                "size": part.plan.size or "",
                "tokens": tokens,
                "tokens_per_parameter": tokens / arm.plan.parameters,
                "training_flops": tokens * arm.plan.flops_per_token,
                "training_seconds": sum(run.seconds or 0 for run in runs) / len(runs),
                "nll": mean.value,
                "low": mean.lower,
                "high": mean.upper,
                "seeds": len(found),
            }


def _gaps(family: Family) -> Iterator[Row]:
    """The NLL of each model minus that of the first model, in the same size and with its budget."""
    for part in family.parts:
        trained = [run.tokens for arm in part.arms for run in arm.runs if run.tokens is not None]
        if part.comparison is None or not trained:
            continue
        tokens = max(trained)
        reference = part.plan.arms[0]
        for pair in part.comparison.pairs:
            if reference.name not in (pair.first, pair.second) or NLL not in pair.measures:
                continue
            found = pair.measures[NLL]
            # A difference is of the first model minus the second.
            gap = found.scaled(-1 if pair.first == reference.name else 1)
            yield {
                "model": pair.second if pair.first == reference.name else pair.first,
                "reference": reference.name,
                "size": part.plan.size or "",
                "tokens": tokens,
                "tokens_per_parameter": tokens / reference.parameters,
                "gap": gap.value,
                "low": min(gap.lower, gap.upper),
                "high": max(gap.lower, gap.upper),
                "verdict": found.verdict,
            }


def _nll(arm: ArmResults, index: int) -> Estimate | PointEstimate | None:
    for result in arm.runs[index].results.values():
        if isinstance(result, NllResult):
            return result.nll
    return None


def _crossings(
    family: Family,
) -> Iterator[tuple[str | None, tuple[str, str], Crossing, str]]:
    sizes = list(dict.fromkeys(part.plan.size for part in family.parts))
    for size in sizes:
        parts = [part for part in family.parts if part.plan.size == size]
        parts.sort(key=lambda part: part.plan.tokens or 0)
        if len(parts) < 2:
            continue
        names = [arm.name for arm in parts[0].plan.arms]
        curves = {name: curve for name in names if (curve := _curve(parts, name)) is not None}
        parameters = {arm.name: arm.plan.parameters for part in parts for arm in part.arms}
        for first, second in combinations(curves, 2):
            if curves[first].nll.shape != curves[second].nll.shape:
                continue
            found = crossing(curves[first], curves[second])
            both = (first, second)
            text = crossing_text(both, found, parameters=[parameters[name] for name in both])
            yield size, both, found, text


def _curve(parts: Sequence[PartResults], name: str) -> Curve | None:
    """The NLL of a model at all budgets; None if a run is missing, or a budget has other seeds."""
    tokens, nll = [], []
    for part in parts:
        found = [arm for arm in part.arms if arm.name == name]
        is_whole = not any(cell.startswith(f"{part.name}/{name}-seed") for cell in part.missing)
        if not found or not is_whole:
            return None
        values = [_nll(found[0], index) for index in range(len(found[0].runs))]
        if any(value is None for value in values) or found[0].runs[0].tokens is None:
            return None
        if nll and len(values) != len(nll[0]):
            return None
        tokens.append(found[0].runs[0].tokens)
        nll.append([value.value for value in values if value is not None])
    return Curve(tokens=tuple(tokens), nll=np.array(nll))


def _budgets_chart(rows: list[Row], models: list[str]) -> "alt.TopLevelMixin":
    import altair as alt

    panels = []
    for field, title in (
        ("tokens_per_parameter", "tokens a parameter"),
        ("training_flops", "training compute, FLOP"),
        ("training_seconds", "training time, seconds"),
    ):
        form = "~e" if field == "training_flops" else "~s"
        base = alt.Chart(data(rows)).encode(
            x=alt.X(
                f"{field}:Q",
                title=title,
                scale=alt.Scale(type="log", nice=False, padding=10),
                axis=alt.Axis(format=form, tickCount=5),
            ),
            color=model_color(models),
            detail="size:N",
        )
        nll = alt.Y("nll:Q", title="held-out NLL", scale=alt.Scale(zero=False, padding=8))
        line = base.mark_line(point=alt.OverlayMarkDef(size=30), strokeWidth=1.6).encode(
            y=nll,
            strokeDash=alt.StrokeDash("size:N", legend=alt.Legend(**SIZE_LEGEND)),
            tooltip=["model:N", "size:N", "tokens:Q", f"{field}:Q", "nll:Q", "low:Q", "high:Q"],
        )
        band = base.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q")
        panels.append(alt.layer(band, line).properties(width=WIDTH, height=HEIGHT))
    return dressed(alt.hconcat(*panels))


def _gaps_chart(rows: list[Row], models: list[str]) -> "alt.TopLevelMixin":
    import altair as alt

    gaps = [0.0, *(float(row["gap"] or 0) for row in rows)]
    room = 0.15 * (max(gaps) - min(gaps))
    heights = [min(gaps) - room, max(gaps) + room]  # of the lines; wide intervals are cut off
    panels = []
    for size in dict.fromkeys(str(row["size"]) for row in rows):
        of_size = [row for row in rows if row["size"] == size]
        base = alt.Chart(data(of_size)).encode(
            x=alt.X(
                "tokens_per_parameter:Q",
                title="tokens a parameter",
                scale=alt.Scale(type="log", nice=False, padding=16),
                axis=alt.Axis(format="~s", tickCount=5),
            ),
            color=model_color(models),
        )
        line = base.mark_line(point=alt.OverlayMarkDef(size=34), strokeWidth=1.6, clip=True).encode(
            y=alt.Y(
                "gap:Q",
                title=f"NLL minus that of {rows[0]['reference']}",
                scale=alt.Scale(domain=heights, nice=False),
            ),
            tooltip=["model:N", "size:N", "tokens:Q", "gap:Q", "low:Q", "high:Q", "verdict:N"],
        )
        interval = base.mark_area(opacity=0.12, clip=True).encode(y="low:Q", y2="high:Q")
        zero = alt.Chart(data([{"gap": 0}])).mark_rule(color="#59636e").encode(y="gap:Q")
        panel = alt.layer(interval, zero, line)
        panels.append(panel.properties(width=1.4 * WIDTH, height=HEIGHT, title=size))
    return dressed(alt.hconcat(*panels))


def _sizes_chart(rows: list[Row], models: list[str]) -> "alt.TopLevelMixin":
    import altair as alt

    sizes = list(dict.fromkeys(str(row["size"]) for row in rows))
    base = alt.Chart(data(rows)).encode(
        y=alt.Y("size:N", title=None, sort=sizes),
        yOffset=alt.YOffset("model:N", sort=models),
        color=model_color(models),
        tooltip=["model:N", "size:N", "gap:Q", "low:Q", "high:Q", "verdict:N"],
    )
    axis = alt.X("gap:Q", title=f"NLL minus that of {rows[0]['reference']}, 95 % interval")
    interval = base.mark_rule(strokeWidth=1.6).encode(x=alt.X("low:Q"), x2="high:Q")
    point = base.mark_point(filled=True, size=60, opacity=1).encode(x=axis)
    zero = alt.Chart(data([{"gap": 0}])).mark_rule(color="#59636e").encode(x="gap:Q")
    layers = alt.layer(zero, interval, point)
    return dressed(layers.properties(width=2 * WIDTH, height=alt.Step(16)))


def tuning(family: Family) -> Iterator[Element]:
    """The sweeps: the NLL of every model with every value, and the chosen values."""
    for part in family.tuning:
        sweeps = _sweeps(part)
        if not sweeps:
            continue
        values = sorted({value for sweep in sweeps for value in sweep.nll})
        rows = [[sweep.model, *(sweep.shown(value) for value in values)] for sweep in sweeps]
        size = "" if part.plan.size is None else f", {part.plan.size}"
        tokens = part.plan.arms[0].amounts.get("tokens", part.plan.tokens)
        note = (
            f"NLL of the held-out documents for tuning, by {sweeps[0].key}; one seed, "
            f"{tokens:,} tokens. A star marks the chosen value. The held-out NLL of every other "
            "run is of the other documents. The NLL while training and other measures read both."
        )
        yield Table(f"Tuning{size}", ["model", *(f"{value:g}" for value in values)], rows, note)
    if warnings := tuning_warnings(family):
        yield Findings([f"Take care: {warning}." for warning in warnings])


def tuning_warnings(family: Family) -> list[str]:
    """A sentence for each model whose best value lies at the edge of its sweep."""
    return [
        f"{part.name}: the best {sweep.key} of {sweep.model} is {sweep.best:g}, at the edge of its "
        "sweep; a better value may lie beyond"
        for part in family.tuning
        for sweep in _sweeps(part)
        if sweep.best in (min(sweep.nll), max(sweep.nll))
    ]


@dataclass(frozen=True)
class _Sweep:
    """The NLL of a model by the value of its tuned key."""

    model: str
    key: str
    nll: dict[float, float]

    @property
    def best(self) -> float:
        return min(self.nll, key=self.nll.__getitem__)

    def shown(self, value: float) -> str:
        if value not in self.nll:
            return ""
        return f"{self.nll[value]:.4f}{CHOSEN * (value == self.best)}"


def _sweeps(part: PartResults) -> list[_Sweep]:
    """The sweeps of a part that tunes, as far as they are measured."""
    sweeps: dict[str, _Sweep] = {}
    for arm in part.arms:
        nll = _nll(arm, 0)
        if arm.plan.tunes is None or nll is None:
            continue
        ((key, value),) = arm.plan.tuned.items()
        sweep = sweeps.setdefault(arm.plan.tunes, _Sweep(arm.plan.tunes, key, {}))
        sweep.nll[value] = nll.value
    return list(sweeps.values())
