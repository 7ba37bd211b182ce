"""What each pass of a part's models does, and what leaving a pass out costs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mixerloop.reports.blocks import Block, Paragraph, Table
from mixerloop.reports.figure import CONTROL
from mixerloop.reports.results_section import transport_over_runs
from mixerloop.reports.study_results import PartResults
from mixerloop.reports.transport_figures import layers_figure, maps, passes_figure

Result = Mapping[str, Any]
REMOVALS = {
    "skip": "without a mixer pass",
    "ffn_off": "without an ffn",
    "swap_order": "with an ffn before its mixer",
}


def transport(part: PartResults) -> Iterator[Block]:
    """Models that loop a mixer, beside the first of them before training."""
    measured = {arm.name: arm.measured("transport") for arm in part.arms}
    looped = {
        name: found
        for name, found in measured.items()
        if found and len(found[0]["marginal_itr"]) > 1
    }
    if looped:
        yield Paragraph(
            "For one layer at a time, the mixer's passes get their context back one by one, and "
            "each step moves the prediction. ITR counts the directions of that path, the effect "
            "says how far it moves; only the gain says whether the move helps. A number near the "
            "rounding floor of its type says nothing. ITR is not a score of capability."
        )
        yield from _figures(part.name, {name: found[0] for name, found in looped.items()})
        yield _table(looped)
    if removed := {name: found for name, found in measured.items() if _removals(found)}:
        yield _removal_table(removed)


def _figures(part: str, first: dict[str, Result]) -> Iterator[Block]:
    """Of the first seed of each model."""
    shown = first | _control(first)
    for figure in (passes_figure(shown), layers_figure(shown), *maps(first)):
        yield figure.renamed(f"{part}-{figure.name}")


def _control(first: Mapping[str, Result]) -> dict[str, Result]:
    """The first model's weights before they were trained."""
    name, result = next(iter(first.items()))
    control = result.get("control")
    return {} if control is None else {f"{name} {CONTROL}": control}


def _table(looped: Mapping[str, Sequence[Result]]) -> Table:
    columns = ["model", "seeds", "ITR", "marginal ITR, later passes", "rounding", "later share"]
    columns += ["later gain", "pairs above .5", "pairs with a gain"]
    first = {name: found[0] for name, found in looped.items()}
    controls = {name: [control] for name, control in _control(first).items()}
    rows = [_row(name, found) for name, found in {**looped, **controls}.items()]
    several = max(len(found) for found in looped.values()) > 1
    dtype = next(iter(first.values()))["compute_dtype"]
    over = "seeds (Student's t), or windows where there is one seed" if several else "windows"
    means = "Means of the seeds; pairs of all seeds; the figures show the first. " * several
    return Table("Transport", columns, rows, f"{means}Intervals are of 95 %, over {over}; {dtype}.")


def _row(name: str, found: Sequence[Result]) -> list[str]:
    passes = range(1, len(found[0]["marginal_itr"]))
    new = [sum(one["marginal_itr"][index] for one in found) / len(found) for index in passes]
    floor = max(value for one in found for value in one["noise_floor"]["marginal_itr"][1:])
    pairs = sum(one["pairs_total"] for one in found)
    return [
        name,
        str(len(found)),
        transport_over_runs(found, "itr", ".3f"),
        " ".join(f"{value:.3f}" for value in new),
        f"{floor:.0e}",
        transport_over_runs(found, "later_share", ".1%"),
        transport_over_runs(found, "later_gain", "+.4f"),
        f"{sum(one['pairs_novel'] for one in found)} of {pairs}",
        f"{sum(one['pairs_positive'] for one in found)} of {pairs}",
    ]


def _removals(found: Sequence[Result]) -> list[Result]:
    return [one["removal"] for one in found if one.get("removal") is not None]


def _removal_table(measured: Mapping[str, Sequence[Result]]) -> Table:
    """The dearest and the cheapest thing to leave out, by layer and pass."""
    rows = []
    for name, found in measured.items():
        first = _removals(found)[0]
        for kind, words in REMOVALS.items():
            costs = sorted(first[kind], key=lambda one: one["delta_nll"])
            if costs:
                mean = sum(one["delta_nll"] for one in costs) / len(costs)
                resolved = sum(one["delta_nll_interval"][0] > 0 for one in costs)
                rows.append(
                    [
                        *(name, words, f"{mean:+.4f}", _cost(costs[-1]), _cost(costs[0])),
                        f"{resolved} of {len(costs)}",
                    ]
                )
    columns = ["model", "changed", "mean change of NLL", "largest", "smallest", "above zero"]
    note = (
        "Nats, the first seed of each model; intervals of 95 % over windows. In a mixer loop "
        "leaving out any pass of a layer gives the same model. Above zero: how many intervals are."
    )
    return Table("Leaving something out", columns, rows, note)


def _cost(one: Mapping[str, Any]) -> str:
    low, high = one["delta_nll_interval"]
    where = f"layer {one['layer']}, pass {one['pass']}"
    return f"{one['delta_nll']:+.4f} [{low:+.4f}, {high:+.4f}], {where}"
