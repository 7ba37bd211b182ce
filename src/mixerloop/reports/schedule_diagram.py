"""Schedules as a picture: one row per layer, time to the right, width for cost.

Every occurrence is a box in the row of its layer. Loops show as boxes that come back to a row, and
the length of a strip is the compute of one token. The colours suit light and dark pages.
"""

from collections.abc import Mapping, Sequence
from html import escape

from mixerloop.notation import notation, shortened
from mixerloop.schedule import Schedule, Sublayer, num_layers_of

WIDTH = 860
ROW_HEIGHT = 13
LEGEND_HEIGHT = 34
TITLE_HEIGHT = 20
STRIP_GAP = 22

STYLE = """
.schedules text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.schedules .name { font-weight: 600 } .schedules .end { text-anchor: end }
.schedules .quiet { fill: #59636e; font-size: 12px; font-weight: 400 }
.schedules .row { stroke: #d1d9e0; stroke-width: 1 }
.schedules .mixer { fill: #2f6fdb } .schedules .ffn { fill: #e08a1e }
@media (prefers-color-scheme: dark) {
  .schedules text { fill: #f0f6fc } .schedules .quiet { fill: #9198a1 }
  .schedules .row { stroke: #3d444d }
  .schedules .mixer { fill: #6aa1ff } .schedules .ffn { fill: #f0a84a }
}
"""
"""The selectors match this picture only, since a style inside a page applies to the whole page."""


Cost = Mapping[Sublayer, float]
"""The cost of one occurrence of each sublayer."""


def draw(schedules: Mapping[str, Schedule], cost: Cost, *, by_layer: Sequence[Cost] = ()) -> str:
    """An SVG of schedules over one stack, to one scale; `by_layer`: where layers cost unequally."""
    costs = by_layer or [cost] * max(map(num_layers_of, schedules.values()))
    lengths = {name: sum(costs[o.layer][o.sublayer] for o in s) for name, s in schedules.items()}
    longest = max(lengths.values())
    parts = [_legend()]
    top = LEGEND_HEIGHT
    for name, schedule in schedules.items():
        parts.append(_title(name, schedule, lengths[name] / longest, top))
        parts.append(_strip(schedule, costs, WIDTH / longest, top + TITLE_HEIGHT))
        top += TITLE_HEIGHT + ROW_HEIGHT * num_layers_of(schedule) + STRIP_GAP
    alternative = escape(", ".join(f"{name} {notation(s)}" for name, s in schedules.items()))
    height = top - STRIP_GAP + 2
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="schedules" role="img" '
        f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
        f"<title>{alternative}</title><style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _legend() -> str:
    return (
        '<rect class="mixer" x="1" y="4" width="11" height="11" rx="2"/>'
        '<text x="18" y="14">mixer</text>'
        '<rect class="ffn" x="70" y="4" width="11" height="11" rx="2"/>'
        '<text x="87" y="14">ffn</text>'
        f'<text class="quiet end" x="{WIDTH}" y="14">a row is a layer with its own weights; '
        "time runs to the right; width is compute</text>"
    )


def _title(name: str, schedule: Schedule, share: float, top: float) -> str:
    name, text = shortened(name), notation(schedule)
    beside = "" if text == name else f'  <tspan class="quiet">{escape(shortened(text))}</tspan>'
    return (
        f'<text class="name" x="0" y="{top + 13}" xml:space="preserve">{escape(name)}{beside}'
        f'</text><text class="quiet end" x="{WIDTH}" y="{top + 13}">{share:.0%}</text>'
    )


def _strip(schedule: Schedule, costs: Sequence[Cost], scale: float, top: float) -> str:
    parts = []
    for layer in range(num_layers_of(schedule)):
        y = top + ROW_HEIGHT * (layer + 0.5)
        parts.append(f'<path class="row" d="M0 {y}H{WIDTH}"/>')
    x = 0.0
    for occurrence in schedule:
        width = costs[occurrence.layer][occurrence.sublayer] * scale
        y = top + ROW_HEIGHT * occurrence.layer + 1
        parts.append(
            f'<rect class="{occurrence.sublayer}" x="{x + 0.5:.2f}" y="{y}" '
            f'width="{max(width - 1, 0.5):.2f}" height="{ROW_HEIGHT - 2}" rx="2">'
            f"<title>{occurrence}</title></rect>"
        )
        x += width
    return "\n".join(parts)
