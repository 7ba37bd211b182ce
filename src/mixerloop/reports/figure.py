"""A figure: rows of numbers, and how they are drawn; written as SVG, PNG and CSV.

Altair makes a Vega-Lite description, and vl-convert draws it without a browser.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixerloop.files import write_file

if TYPE_CHECKING:
    import altair as alt

Row = dict[str, str | int | float | None]
PNG_SCALE = 2
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
"""A loop has one colour in all figures; the mixer's and the ffn's are those of the schedules."""
CONTROL = "before training"
"""How the name of a control ends."""
OTHER_COLORS = ("#c8453b", "#12a5b8", "#b0872c", "#d16ba5", "#7a8f2a", "#9198a1")


@dataclass(frozen=True)
class Figure:
    """One picture and the numbers in it."""

    name: str
    """Of its files, without an ending."""
    title: str
    rows: list[Row]
    chart: "alt.TopLevelMixin"
    is_small: bool = False
    """Whether two have room side by side."""

    def renamed(self, name: str) -> "Figure":
        """The same under another name."""
        return replace(self, name=name)

    def spec(self) -> dict[str, Any]:
        """The Vega-Lite description, numbers included."""
        return self.chart.to_dict()

    def csv(self) -> str:
        """The numbers alone."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()

    def svg(self) -> str:
        """Drawn as lines."""
        import vl_convert

        return vl_convert.vegalite_to_svg(self.spec(), vl_version=vega_version())

    def write(self, folder: Path) -> None:
        """All three files."""
        import vl_convert

        folder.mkdir(parents=True, exist_ok=True)
        png = vl_convert.vegalite_to_png(self.spec(), vl_version=vega_version(), scale=PNG_SCALE)
        for ending, content in (("csv", self.csv()), ("svg", self.svg()), ("png", png)):
            write_file(folder / f"{self.name}.{ending}", content)


def vega_version() -> str:
    """Of Vega-Lite: the one Altair writes for, as vl-convert names it."""
    import altair as alt

    major, minor, _ = alt.SCHEMA_VERSION.split(".")
    return f"{major}.{minor}"


def data(rows: list[Row]) -> "alt.Data":
    """Numbers for a chart; columns then need their types said, as in `pass:O`."""
    import altair as alt

    return alt.Data(values=rows)


def model_color(names: Sequence[str]) -> "alt.Color":
    """A colour for each model, the loops' own where they are named."""
    import altair as alt

    others = cycle(OTHER_COLORS)
    named = [
        NAMED_COLORS["control"]
        if name.endswith(CONTROL)
        else NAMED_COLORS.get(name.partition("(")[0])
        for name in names
    ]
    colors = [color or next(others) for color in named]
    return alt.Color("model:N", scale=alt.Scale(domain=list(names), range=colors))


def dressed(chart: "alt.TopLevelMixin") -> "alt.TopLevelMixin":
    """Every figure in one dress."""
    return (
        chart.configure(font="system-ui, sans-serif", background="white")  # pyright: ignore
        .configure_view(stroke=None)
        .configure_axis(grid=True, gridColor="#e6eaef", domain=False, tickColor="#d1d9e0")
        .configure_title(anchor="start", fontSize=13)
        .configure_legend(orient="top", title=None, symbolOpacity=1)
    )
