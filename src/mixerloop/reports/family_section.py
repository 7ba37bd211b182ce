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
from mixerloop.reports.figure import Figure, Point, data, dressed, model_color
from mixerloop.studies.table import Table as StudyTable

if TYPE_CHECKING:
    import altair as alt

WIDTH, HEIGHT = 250, 260
NLL = "nll"
SIZE_LEGEND = {"symbolType": "stroke", "symbolStrokeColor": "#59636e", "symbolStrokeWidth": 1.6}
CHOSEN = " *"
"""Marks the best value of a sweep."""


def over_budgets(family: StudyTable) -> Iterator[Element]:
    """Curves against tokens, compute and time, and where they cross; nothing for a single part."""
    trained, name = family.where(is_tuning=False), family.first.family
    parts, sizes = trained.by("part"), trained.by("size")
    rows = list(_points(trained))
    if len(parts) < 2 or not rows:
        return
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    gaps = list(_gaps(trained))
    others = [model for model in models if not gaps or model != gaps[0]["reference"]]
    if len(sizes) == len(parts):
        if gaps:
            title = f"What each model gains or loses against {gaps[0]['reference']}, by size"
            chart = partial(_sizes_chart, gaps, others)
            yield Figure(f"{name}-gaps", title, gaps, chart)
        return
    yield Figure(
        f"{name}-budgets",
        "Held-out NLL by budget; each point is the end of a run of its own",
        rows,
        partial(_budgets_chart, rows, models),
    )
    if gaps:
        yield Figure(
            f"{name}-gaps",
            f"What each model gains or loses against {gaps[0]['reference']}, by budget",
            gaps,
            partial(_gaps_chart, gaps, others),
        )
    crossings = list(_crossings(trained))
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


def crossing_findings(family: StudyTable) -> list[str]:
    """A sentence for each pair of models whose order changes."""
    return [
        f"{family.first.family}{'' if size is None else f', {size}'}: {text}"
        for size, _, found, text in _crossings(family.where(is_tuning=False))
        if found.tokens is not None
    ]


def _points(trained: StudyTable) -> Iterator[Point]:
    for part in trained.by("part").values():
        for name, arm in part.arms.items():
            timed = arm.only(lambda row: row.trained_tokens is not None and row.seconds is not None)
            nll = arm.estimate(NllResult, "nll")
            if not timed or nll is None or timed.first.trained_tokens is None:
                continue
            row, tokens = arm.first, timed.first.trained_tokens
            yield {
                "model": name,
                "size": row.size or "",
                "tokens": tokens,
                "tokens_per_parameter": tokens / row.parameters,
                "training_flops": tokens * row.flops_per_token,
                "training_seconds": sum(row.seconds or 0 for row in timed) / len(timed),
                "nll": nll.value,
                "low": nll.lower,
                "high": nll.upper,
                "seeds": len(arm.results(NllResult)),
            }


def _gaps(trained: StudyTable) -> Iterator[Point]:
    """The NLL of each model minus that of the first model, in the same size and with its budget."""
    for part in trained.by("part").values():
        tokens = [row.trained_tokens for row in part if row.trained_tokens is not None]
        if part.comparison is None or not tokens:
            continue
        reference = part.first
        for pair in part.comparison.pairs:
            if reference.arm not in (pair.first, pair.second) or NLL not in pair.measures:
                continue
            found = pair.measures[NLL]
            # A difference is of the first model minus the second.
            gap = found.scaled(-1 if pair.first == reference.arm else 1)
            yield {
                "model": pair.second if pair.first == reference.arm else pair.first,
                "reference": reference.arm,
                "size": reference.size or "",
                "tokens": max(tokens),
                "tokens_per_parameter": max(tokens) / reference.parameters,
                "gap": gap.value,
                "low": min(gap.lower, gap.upper),
                "high": max(gap.lower, gap.upper),
                "verdict": found.verdict,
            }


def _crossings(
    trained: StudyTable,
) -> Iterator[tuple[str | None, tuple[str, str], Crossing, str]]:
    for size, of_size in trained.by("size").items():
        parts = sorted(of_size.by("part").values(), key=lambda part: part.first.tokens or 0)
        if len(parts) < 2:
            continue
        names = parts[0].by("arm")
        curves = {name: curve for name in names if (curve := _curve(parts, name)) is not None}
        parameters = {row.arm: row.parameters for row in of_size}
        for first, second in combinations(curves, 2):
            if curves[first].nll.shape != curves[second].nll.shape:
                continue
            found = crossing(curves[first], curves[second])
            both = (first, second)
            text = crossing_text(both, found, parameters=[parameters[name] for name in both])
            yield size, both, found, text


def _curve(parts: Sequence[StudyTable], name: str) -> Curve | None:
    """The NLL of a model at all budgets; None if a run is missing, or a budget has other seeds."""
    tokens, nll = [], []
    for part in parts:
        arm = part.where(arm=name)
        values = [result.nll.value for result in arm.results(NllResult)]
        if not arm or len(values) < len(arm) or arm.first.trained_tokens is None:
            return None
        if nll and len(values) != len(nll[0]):
            return None
        tokens.append(arm.first.trained_tokens)
        nll.append(values)
    return Curve(tokens=tuple(tokens), nll=np.array(nll))


def _budgets_chart(rows: list[Point], models: list[str]) -> "alt.TopLevelMixin":
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


def _gaps_chart(rows: list[Point], models: list[str]) -> "alt.TopLevelMixin":
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


def _sizes_chart(rows: list[Point], models: list[str]) -> "alt.TopLevelMixin":
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


def tuning(family: StudyTable) -> Iterator[Element]:
    """The sweeps: the NLL of every model with every value, and the chosen values."""
    for part in family.where(is_tuning=True).by("part").values():
        sweeps, row = _sweeps(part), part.first
        if not sweeps:
            continue
        values = sorted({value for sweep in sweeps for value in sweep.nll})
        rows = [[sweep.model, *(sweep.shown(value) for value in values)] for sweep in sweeps]
        size = "" if row.size is None else f", {row.size}"
        tokens = row.amounts.get("tokens", row.tokens)
        note = (
            f"NLL of the held-out documents for tuning, by {sweeps[0].key}; one seed, "
            f"{tokens:,} tokens. A star marks the chosen value. The held-out NLL of every other "
            "run is of the other documents. The NLL while training and other measures read both."
        )
        yield Table(f"Tuning{size}", ["model", *(f"{value:g}" for value in values)], rows, note)
    if warnings := tuning_warnings(family):
        yield Findings([f"Take care: {warning}." for warning in warnings])


def tuning_warnings(family: StudyTable) -> list[str]:
    """A sentence for each model whose best value lies at the edge of its sweep."""
    return [
        f"{name}: the best {sweep.key} of {sweep.model} is {sweep.best:g}, at the edge of its "
        "sweep; a better value may lie beyond"
        for name, part in family.where(is_tuning=True).by("part").items()
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


def _sweeps(part: StudyTable) -> list[_Sweep]:
    """The sweeps of a part that tunes, as far as they are measured."""
    sweeps: dict[str, _Sweep] = {}
    for row in part:
        result = row.result(NllResult)
        if row.tunes is None or result is None:
            continue
        ((key, value),) = row.tuned.items()
        sweep = sweeps.setdefault(row.tunes, _Sweep(row.tunes, key, {}))
        sweep.nll[value] = result.nll.value
    return list(sweeps.values())
