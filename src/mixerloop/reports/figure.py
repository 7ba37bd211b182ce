"""A figure: rows of numbers and a chart of them, written as SVG, PNG and CSV."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import altair as alt

Point = dict[str, str | int | float | None]
FORMULA_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""The beginnings of a text that spreadsheets take for a formula."""
NAMED_COLORS = {
    "model": "#2f6fdb",
    "trained": "#2f6fdb",
    "control": "#9198a1",
    "no_loop": "#59636e",
    "mixer_loop": "#2f6fdb",
    "ffn_loop": "#e08a1e",
    "block_loop": "#3a9b6f",
    "full_loop": "#8d5bc4",
}
"""Each loop's colour in all figures; the mixer loop and the ffn loop use the colours of the mixer
and the ffn in schedule diagrams."""
CONTROL = "before training"
"""The last words in the name of a control."""
OTHER_COLORS = ("#c8453b", "#12a5b8", "#b0872c", "#d16ba5", "#7a8f2a", "#9198a1")


@dataclass(frozen=True)
class Figure:
    """A chart and the numbers it shows."""

    name: str
    """The name of the figure's files, without an extension."""
    title: str
    rows: list[Point]
    chart: "Callable[[], alt.TopLevelMixin]"
    """Makes the chart, when the figure is drawn."""
    is_small: bool = False
    """Whether the page has room for two such figures side by side."""

    def renamed(self, name: str) -> "Figure":
        """A copy whose files have another name."""
        return replace(self, name=name)

    def csv(self) -> str:
        """The numbers of the figure as CSV, a column for each key.

        A name that a spreadsheet would take for a formula gets an apostrophe in front.
        """
        text = io.StringIO()
        columns = list(self.rows[0]) if self.rows else []
        writer = csv.DictWriter(text, fieldnames=columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {key: _without_formula(value) for key, value in row.items()} for row in self.rows
        )
        return text.getvalue()


def _without_formula(value: str | int | float | None) -> str | int | float | None:
    if not isinstance(value, str):
        return value
    text = " ".join(value.splitlines())
    is_formula = value.startswith(FORMULA_BEGINNINGS) or text.lstrip()[:1] in FORMULA_BEGINNINGS
    return f"'{text}" if is_formula else text


def data(rows: list[Point]) -> "alt.Data":
    """Rows as chart data; an encoding must name the type of each column, as in `pass:O`."""
    import altair as alt

    return alt.Data(values=rows)


def model_color(names: Sequence[str]) -> "alt.Color":
    """A colour for each model: the fixed colour of a named loop, or the next free colour."""
    import altair as alt

    free_colors = cycle(OTHER_COLORS)
    colors = [_named_color(name, names) or next(free_colors) for name in names]
    return alt.Color("model:N", scale=alt.Scale(domain=list(names), range=colors))


def _named_color(name: str, names: Sequence[str]) -> str | None:
    """The colour of a loop, lighter for another number of passes of a loop that is shown too."""
    if name.endswith(CONTROL):
        return NAMED_COLORS["control"]
    loop, has_passes, _ = name.partition("(")
    color = NAMED_COLORS.get(loop)
    return _lighter(color) if color and has_passes and loop in names else color


def _lighter(color: str) -> str:
    channels = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{(channel + 255) // 2:02x}" for channel in channels)


def dressed(chart: "alt.TopLevelMixin") -> "alt.TopLevelMixin":
    """A chart with the fonts, axes and legend that all figures share."""
    return (
        chart.configure(font="system-ui, sans-serif", background="white")  # pyright: ignore
        .configure_view(stroke=None)
        .configure_axis(grid=True, gridColor="#e6eaef", domain=False, tickColor="#d1d9e0")
        .configure_title(anchor="start", fontSize=13)
        .configure_legend(orient="top", title=None, symbolOpacity=1)
    )
