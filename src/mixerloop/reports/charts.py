"""The charts of a report, other than those of transport."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from mixerloop.evaluation.nll_result import NllResult
from mixerloop.reports.figure import Figure, Point, data, dressed, model_color
from mixerloop.reports.study_results import PrefillCase
from mixerloop.studies.table import Table as StudyTable

if TYPE_CHECKING:
    import altair as alt

WIDTH, HEIGHT = 380, 240
SIZE_COLORS = ("#2f6fdb", "#8d5bc4", "#3a9b6f", "#e08a1e")


def curves(part: StudyTable) -> Figure | None:
    """Held-out NLL while training, a line for every seed."""
    rows: list[Point] = [
        {
            "model": name,
            "seed": row.seed,
            "tokens": point.tokens,
            "held_out_nll": point.held_out_nll,
        }
        for name, arm in part.arms.items()
        for row in arm
        for point in row.curve
    ]
    if not rows:
        return None
    chart = partial(_curves_chart, rows, list(part.arms))
    return Figure(f"{part.first.part}-curves", "Held-out NLL while training", rows, chart)


def _curves_chart(rows: list[Point], names: list[str]) -> "alt.TopLevelMixin":
    import altair as alt

    chart = (
        alt.Chart(data(rows))
        .mark_line(point=alt.OverlayMarkDef(size=14), strokeWidth=1.6)
        .encode(
            x=alt.X("tokens:Q", title="tokens trained on", axis=alt.Axis(format="~s", tickCount=8)),
            y=alt.Y(
                "held_out_nll:Q",
                title="held-out NLL",
                scale=alt.Scale(zero=False),
                axis=alt.Axis(tickCount=6),
            ),
            color=model_color(names),
            detail="seed:N",
            tooltip=["model:N", "seed:N", "tokens:Q", "held_out_nll:Q"],
        )
        .properties(width=2 * WIDTH - 40, height=HEIGHT)
    )
    return dressed(chart)


def against_cost(part: StudyTable) -> Figure | None:
    """Held-out NLL against the compute and the time of training."""
    rows: list[Point] = [
        {
            "model": name,
            "seed": row.seed,
            "training_flops": row.flops_per_token * row.trained_tokens,
            "training_seconds": row.seconds,
            "nll": result.nll.value,
            "low": result.nll.lower,
            "high": result.nll.upper,
        }
        for name, arm in part.arms.items()
        for row in arm
        if (result := row.result(NllResult)) is not None
        and row.trained_tokens is not None
        and row.seconds is not None
    ]
    if not rows:
        return None
    chart = partial(_cost_chart, rows, list(part.arms))
    return Figure(f"{part.first.part}-cost", "What was reached, and what it cost", rows, chart)


def _cost_chart(rows: list[Point], names: list[str]) -> "alt.TopLevelMixin":
    import altair as alt

    panels = []
    for field, title in (
        ("training_flops", "training compute, FLOP"),
        ("training_seconds", "training time, seconds"),
    ):
        form = alt.Axis(format="~e" if field == "training_flops" else "~s", tickCount=5)
        base = alt.Chart(data(rows)).encode(
            x=alt.X(f"{field}:Q", title=title, scale=alt.Scale(zero=False, padding=12), axis=form),
            color=model_color(names),
        )
        points = base.mark_point(filled=True, size=60).encode(
            y=alt.Y(
                "nll:Q",
                title="held-out NLL",
                scale=alt.Scale(zero=False, padding=12),
                axis=alt.Axis(tickCount=6),
            ),
            tooltip=["model:N", "seed:N", f"{field}:Q", "nll:Q", "low:Q", "high:Q"],
        )
        panels.append(points.properties(width=WIDTH - 50, height=HEIGHT))
    return dressed(alt.hconcat(*panels))


def prefill(cases: Sequence[PrefillCase]) -> Figure:
    """The throughput of the mixer loop in prefill, as a multiple of the full loop's."""
    rows: list[Point] = [
        {
            "size": case.size,
            "batch": case.batch,
            "mixer_over_full": case.mixer_over_full,
            "low": case.mixer_over_full_quartiles[0],
            "high": case.mixer_over_full_quartiles[1],
            "by_work": case.flop_limit,
        }
        for case in cases
    ]
    title = "Prefill: what looping the mixer alone saves (red: by the work of the projections)"
    return Figure("prefill", title, rows, partial(_prefill_chart, rows))


def _prefill_chart(rows: list[Point]) -> "alt.TopLevelMixin":
    import altair as alt

    base = alt.Chart(data(rows)).encode(
        x=alt.X("batch:O", title="prompts at once", axis=alt.Axis(labelAngle=0)),
        xOffset="size:N",
        color=alt.Color("size:N", scale=alt.Scale(range=list(SIZE_COLORS))),
    )
    bars = base.mark_bar(width=26).encode(
        y=alt.Y("mixer_over_full:Q", title="mixer loop over full loop, times as fast"),
        tooltip=["size:N", "batch:O", "mixer_over_full:Q", "low:Q", "high:Q", "by_work:Q"],
    )
    spread = base.mark_rule(strokeWidth=2).encode(
        y="low:Q", y2="high:Q", color=alt.value("#9198a1")
    )
    limit = base.mark_tick(thickness=2, width=34).encode(y="by_work:Q", color=alt.value("#c8453b"))
    chart = alt.layer(bars, spread, limit).properties(width=WIDTH, height=HEIGHT)
    return dressed(chart)
