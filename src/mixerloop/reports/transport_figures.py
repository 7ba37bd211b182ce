"""Figures of the effect of each pass at the readout, from results of `mixerloop transport`."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mixerloop.ownership import Ledger
from mixerloop.reports.drawing import draw_figures
from mixerloop.reports.figure import Figure, Point, data, dressed, model_color
from mixerloop.reports.figure_files import ENDINGS, figure_files, undrawn_warning
from mixerloop.results import Estimate, PartialEstimate
from mixerloop.transport.result import PassFigures, TransportFigures, TransportResult

if TYPE_CHECKING:
    import altair as alt

Figures = Mapping[str, TransportFigures]
"""By the name of the model."""
FIGURES = "figures"
NOVELTY, GAIN = MAPS = ("transport-novelty", "transport-gain")

PANELS = {
    "itr_by_depth": "ITR of the passes so far",
    "hellinger_squared": "squared Hellinger effect",
    "target_gain": "gain of the target, nats",
}
PANEL_WIDTH, PANEL_HEIGHT, PANEL_GAP = 210, 200, 64
MARGIN = 0.06
"""The space above the highest interval and below the lowest, as a share of the range."""
CELL = 44
DARK_CELL = 0.55
"""As a share of the largest value; text on darker cells is white."""


def transport_figures(results: Figures) -> list[Figure]:
    """The passes of every model side by side, and two maps of each model's layers."""
    return [passes_figure(results), *maps(results)]


def write_transport_figures(
    result: TransportResult, folder: Path, *, overwrite: bool = False
) -> str | None:
    """Draw a result of `measure_transport`, beside its control if it has one, into a folder.

    Returns a warning if figures could not be drawn; their numbers are written all the same.
    """
    models: dict[str, TransportFigures] = {"model": result}
    if result.control is not None:
        models = {"trained": result, "control": result.control}
    figures = transport_figures(models)
    drawings = draw_figures(figures)
    Ledger(folder / FIGURES).write(
        figure_files(figures, drawings, folder / FIGURES), overwrite=overwrite
    )
    return undrawn_warning(figures, drawings)


def check_transport_figures(folder: Path, *, control: bool, overwrite: bool = False) -> None:
    """Raise if figures of a result would replace files that this program did not write."""
    models = ("-trained", "-control") if control else ("",)
    names = ["transport-passes", *(f"{map_}{model}" for map_ in MAPS for model in models)]
    paths = [folder / FIGURES / f"{name}.{ending}" for name in names for ending in ENDINGS]
    Ledger(folder / FIGURES).check(paths, overwrite=overwrite)


def maps(results: Figures) -> list[Figure]:
    """Two maps for each model, by layer and pass: marginal ITR, and gain of the target."""
    return [
        figure(name, result, several=len(results) > 1)
        for name, result in results.items()
        for figure in (_novelty_map, _gain_map)
    ]


def passes_figure(results: Figures) -> Figure:
    """The paper's figure 2: cumulative ITR, effect and gain, with intervals over windows."""
    rows: list[Point] = [
        {"model": name, **row} for name, result in results.items() for row in _rows(result)
    ]
    chart = partial(_passes_chart, rows, list(results))
    return Figure("transport-passes", "What each pass does at the readout", rows, chart)


def _passes_chart(rows: list[Point], names: list[str]) -> "alt.TopLevelMixin":
    return dressed(_panels(rows, names))


def layers_figure(results: Figures) -> Figure:
    """The same panels for one layer, which the reader of the page picks."""
    rows: list[Point] = [
        {"model": name, "layer": layer.layer, **row}
        for name, result in results.items()
        for layer in result.layers
        for row in _rows(layer)
    ]
    chart = partial(_layers_chart, rows, list(results))
    return Figure("transport-layers", "The same in one layer", rows, chart)


def _layers_chart(rows: list[Point], names: list[str]) -> "alt.TopLevelMixin":
    import altair as alt

    layers = sorted({int(row["layer"] or 0) for row in rows})
    picker = alt.param(
        name="picked", value=layers[0], bind=alt.binding_select(options=layers, name="layer ")
    )
    return dressed(_panels(rows, names, only="datum.layer == picked").add_params(picker))


def _rows(result: PassFigures) -> Iterator[Point]:
    panels: dict[str, Sequence[Estimate | PartialEstimate]] = {
        "itr_by_depth": result.itr_by_depth,
        "hellinger_squared": result.hellinger_squared,
        "target_gain": result.target_gain,
    }
    for figure in PANELS:
        for number, estimate in enumerate(panels[figure], start=1):
            ends: Point = {"value": estimate.value, "low": estimate.lower, "high": estimate.upper}
            yield {"figure": figure, "pass": number, **ends}


def _panels(rows: list[Point], names: list[str], only: str | None = None) -> "alt.HConcatChart":
    import altair as alt

    panels = []
    for figure, title in PANELS.items():
        shown = [row for row in rows if row["figure"] == figure and row["value"] is not None]
        is_log = figure == "hellinger_squared"
        scale = alt.Scale(
            type="log" if is_log else "linear", domain=_around(shown, is_log=is_log), nice=False
        )
        axis = alt.Axis(
            format="~e" if is_log else "~g",
            tickCount=4 if is_log else 6,
            titleAngle=0,
            titleAlign="left",
            titleX=0,
            titleY=-14,
        )

        def y(field: str, scale: Any = scale, axis: Any = axis, title: str = title) -> "alt.Y":
            return alt.Y(f"{field}:Q", title=title, scale=scale, axis=axis)

        base = alt.Chart(data(shown)).encode(
            x=alt.X("pass:O", title="pass", axis=alt.Axis(labelAngle=0)),
            color=model_color(names),
        )
        if only is not None:
            base = base.transform_filter(only)
        interval = base.mark_rule(strokeWidth=2, opacity=0.5).encode(y=y("low"), y2="high:Q")
        line = base.mark_line(point=alt.OverlayMarkDef(size=45)).encode(
            y=y("value"), tooltip=["model:N", "pass:O", "value:Q", "low:Q", "high:Q"]
        )
        layers = [interval, line]
        if figure == "target_gain":
            zero = alt.Chart(data([{"zero": 0.0}])).mark_rule(strokeDash=[4, 4], color="#59636e")
            layers.append(zero.encode(y=y("zero")))
        panels.append(alt.layer(*layers).properties(width=PANEL_WIDTH, height=PANEL_HEIGHT))
    return alt.hconcat(*panels, bounds="flush", spacing=PANEL_GAP)


def _around(rows: list[Point], *, is_log: bool) -> list[float]:
    """The range of an axis that holds all intervals, with a margin."""
    ends = [float(row[end] or 0.0) for row in rows for end in ("low", "high", "value")] or [0.0]
    if is_log:
        above_zero = [end for end in ends if end > 0] or [1.0]
        return [min(above_zero) / 2, max(above_zero) * 2]
    margin = MARGIN * (max(ends) - min(ends)) or MARGIN
    return [min(ends) - margin, max(ends) + margin]


def _novelty_map(name: str, result: TransportFigures, *, several: bool) -> Figure:
    return _map(
        NOVELTY,
        name if several else "",
        {layer.layer: layer.marginal_itr for layer in result.layers},
        title="marginal ITR",
        digits=".2f",
        domain=(0.0, 1.0),
        scheme="blues",
    )


def _gain_map(name: str, result: TransportFigures, *, several: bool) -> Figure:
    values = [gain.value for layer in result.layers for gain in layer.target_gain]
    largest = max(map(abs, values), default=0.0) or 1.0
    return _map(
        GAIN,
        name if several else "",
        {layer.layer: layer.target_gain for layer in result.layers},
        title="gain of the target, nats",
        digits="+.3f" if largest >= 1e-2 else "+.1e",
        domain=(-largest, largest),
        scheme="redblue",
    )


def _map(
    file: str,
    model: str,
    passes: Mapping[int, Sequence[Estimate]],
    *,
    title: str,
    digits: str,
    domain: tuple[float, float],
    scheme: Literal["blues", "redblue"],
) -> Figure:
    """The paper's figure 3: a row per layer, a column per pass."""
    rows: list[Point] = [
        {
            "layer": layer,
            "pass": number,
            "value": estimate.value,
            "low": estimate.lower,
            "high": estimate.upper,
        }
        for layer, of_layer in passes.items()
        for number, estimate in enumerate(of_layer, start=1)
    ]
    title = f"{model}: {title}" if model else title
    chart = partial(_map_chart, rows, title=title, digits=digits, domain=domain, scheme=scheme)
    suffix = "-" + "".join(c if c.isalnum() else "_" for c in model) if model else ""
    return Figure(f"{file}{suffix}", title, rows, chart, is_small=True)


def _map_chart(
    rows: list[Point],
    *,
    title: str,
    digits: str,
    domain: tuple[float, float],
    scheme: Literal["blues", "redblue"],
) -> "alt.TopLevelMixin":
    import altair as alt

    base = alt.Chart(data(rows), title=title).encode(
        x=alt.X("pass:O", title="pass", axis=alt.Axis(labelAngle=0, grid=False)),
        y=alt.Y("layer:O", title="layer", axis=alt.Axis(grid=False)),
    )
    colors = alt.Scale(domain=list(domain), scheme=scheme)
    cells = base.mark_rect(stroke="white").encode(
        color=alt.Color("value:Q", scale=colors, legend=None),
        tooltip=["layer:O", "pass:O", "value:Q", "low:Q", "high:Q"],
    )
    is_dark = f"abs(datum.value) > {DARK_CELL * domain[1]}"
    numbers = base.mark_text(fontSize=11).encode(
        text=alt.Text("value:Q", format=digits),
        color=alt.condition(is_dark, alt.value("white"), alt.value("#1f2328")),
    )
    columns = max((int(row["pass"] or 0) for row in rows), default=0)
    num_layers = len({row["layer"] for row in rows})
    sized = alt.layer(cells, numbers).properties(
        width=max(4, columns) * CELL * 1.3, height=max(4, num_layers) * CELL * 0.65
    )
    return dressed(sized)
