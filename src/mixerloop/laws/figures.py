"""The figures of a law: its curves over the cells, and the residuals."""

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from mixerloop.laws.fit import predicted_nll
from mixerloop.laws.law_result import LawResult, LoopLaw
from mixerloop.reports.figure import Figure, Point, data, dressed, model_color

if TYPE_CHECKING:
    import altair as alt

WIDTH, HEIGHT = 380, 260
CURVE_POINTS = 24
CELL, CURVE = "cell", "curve"
"""The two sorts of rows: measured cells, and points of the fitted curves."""


def law_figures(result: LawResult) -> list[Figure]:
    """A figure for each loop: the curves over the cells, and the residuals beside them."""
    names = _names([law.loop for law in result.loops])
    return [_law_figure(law, name) for law, name in zip(result.loops, names, strict=True)]


def _names(loops: Sequence[str]) -> list[str]:
    """A name for the files of each loop's figure; an arm may be called anything."""
    names: list[str] = []
    for loop in loops:
        name = f"law-{re.sub(r'[^A-Za-z0-9_-]+', '-', loop).strip('-')}"
        names.append(name if name not in names else f"{name}-{len(names) + 1}")
    return names


def _law_figure(law: LoopLaw, name: str) -> Figure:
    rows = [*_cell_rows(law), *_curve_rows(law)]
    models = list(dict.fromkeys(cell.loop for cell in law.cells))
    phi = law.phi
    title = f"{law.loop}: phi {phi.value:.2f} [{phi.lower:.2f}, {phi.upper:.2f}]"
    return Figure(name, title, rows, partial(_law_chart, rows, models, title))


def _cell_rows(law: LoopLaw) -> list[Point]:
    return [
        {
            "row": CELL,
            "model": cell.loop,
            "size": cell.size,
            "passes": cell.passes,
            "tokens": cell.tokens,
            "nll": cell.nll,
            "fitted": cell.fitted,
            "residual": cell.residual,
            "seeds": cell.seeds,
        }
        for cell in law.cells
    ]


def _curve_rows(law: LoopLaw) -> list[Point]:
    values = {name: estimate.value for name, estimate in law.parameters.items()}
    budgets = [cell.tokens for cell in law.cells]
    models = {(one.loop, one.size, one.passes, one.once, one.recurrent) for one in law.cells}
    rows: list[Point] = []
    for loop, size, passes, once, recurrent in sorted(models):
        for tokens in np.geomspace(min(budgets), max(budgets), CURVE_POINTS):
            fitted = predicted_nll(
                values, once=once, recurrent=recurrent, passes=passes, tokens=float(tokens)
            )
            rows.append(
                {
                    "row": CURVE,
                    "model": loop,
                    "size": size,
                    "passes": passes,
                    "tokens": float(tokens),
                    "nll": None,
                    "fitted": fitted,
                    "residual": None,
                    "seeds": None,
                }
            )
    return rows


def _law_chart(rows: list[Point], models: list[str], title: str) -> "alt.TopLevelMixin":
    import altair as alt

    cells = [row for row in rows if row["row"] == CELL]
    curves = [row for row in rows if row["row"] == CURVE]
    tokens = alt.X(
        "tokens:Q",
        title="tokens trained on",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format="~s", tickCount=5),
    )
    free = alt.Scale(zero=False, padding=12)
    tooltip = ["model:N", "size:N", "passes:Q", "tokens:Q", "nll:Q", "fitted:Q", "residual:Q"]
    lines = (
        alt.Chart(data(curves))
        .mark_line(strokeWidth=1.4)
        .encode(
            x=tokens,
            y=alt.Y("fitted:Q", title="held-out NLL", scale=free),
            color=model_color(models),
            strokeDash=alt.StrokeDash("passes:N"),
            detail="size:N",
        )
    )
    points = (
        alt.Chart(data(cells))
        .mark_point(filled=True, size=45)
        .encode(x=tokens, y="nll:Q", color=model_color(models), shape="size:N", tooltip=tooltip)
    )
    residuals = (
        alt.Chart(data(cells))
        .mark_point(filled=True, size=45)
        .encode(
            x=alt.X("fitted:Q", title="NLL by the law", scale=free),
            y=alt.Y("residual:Q", title="NLL minus the law"),
            color=model_color(models),
            shape="size:N",
            tooltip=tooltip,
        )
    )
    zero = alt.Chart(data([{"zero": 0.0}])).mark_rule(color="#9198a1").encode(y="zero:Q")
    panels = (alt.layer(lines, points), alt.layer(zero, residuals))
    sized = [panel.properties(width=WIDTH, height=HEIGHT) for panel in panels]
    return dressed(alt.hconcat(*sized, title=title))
