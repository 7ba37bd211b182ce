"""The transport of a part's models, and the cost of leaving out a pass."""

from collections.abc import Iterator, Mapping, Sequence

from mixerloop.reports.elements import Element, Paragraph, Table
from mixerloop.reports.figure import CONTROL
from mixerloop.reports.results_section import partly_over_runs, shown_over_runs
from mixerloop.reports.transport_figures import layers_figure, maps, passes_figure
from mixerloop.studies.table import Table as StudyTable
from mixerloop.transport.result import (
    RemovalCost,
    RemovalFigures,
    TransportFigures,
    TransportResult,
)


def transport(part: StudyTable) -> Iterator[Element]:
    """Figures and tables of all models that loop a mixer, with the first model's control."""
    measured = {name: arm.results(TransportResult) for name, arm in part.arms.items()}
    looped = {
        name: results
        for name, results in measured.items()
        if results and len(results[0].marginal_itr) > 1
    }
    if looped:
        yield Paragraph(
            "For one layer at a time, the mixer's passes get their context back one by one, and "
            "each step moves the prediction. ITR counts the directions of that path, the effect "
            "says how far it moves; only the gain says whether the move helps. A number near the "
            "rounding floor of its type says nothing. ITR is not a score of capability."
        )
        yield from _figures(part.first.part, {name: results[0] for name, results in looped.items()})
        yield _table(looped)
    if removed := {
        name: costs[0] for name, results in measured.items() if (costs := _removals(results))
    }:
        yield _removal_table(removed)


def _figures(part: str, first: Mapping[str, TransportResult]) -> Iterator[Element]:
    """The figures of each model's first seed."""
    shown: dict[str, TransportFigures] = {**first, **_control(first)}
    for figure in (passes_figure(shown), layers_figure(shown), *maps(first)):
        yield figure.renamed(f"{part}-{figure.name}")


def _control(first: Mapping[str, TransportResult]) -> dict[str, TransportFigures]:
    """The control of the first model: its weights before training."""
    name, result = next(iter(first.items()))
    return {} if result.control is None else {f"{name} {CONTROL}": result.control}


def _table(looped: Mapping[str, Sequence[TransportResult]]) -> Table:
    columns = ["model", "seeds", "ITR", "marginal ITR, later passes", "rounding", "later share"]
    columns += ["later gain", "pairs above .5", "pairs with a gain"]
    first = {name: results[0] for name, results in looped.items()}
    rows = [_row(name, results) for name, results in looped.items()]
    rows += [_row(name, [control]) for name, control in _control(first).items()]
    several = max(len(results) for results in looped.values()) > 1
    dtype = next(iter(first.values())).compute_dtype
    over = "seeds (Student's t), or windows where there is one seed" if several else "windows"
    means = "Means of the seeds; pairs of all seeds; the figures show the first. " * several
    return Table("Transport", columns, rows, f"{means}Intervals are of 95 %, over {over}; {dtype}.")


def _row(name: str, seeds: Sequence[TransportFigures]) -> list[str]:
    passes = range(1, len(seeds[0].marginal_itr))
    new = [
        sum(result.marginal_itr[index].value for result in seeds) / len(seeds) for index in passes
    ]
    floor = max(value for result in seeds for value in result.noise_floor.marginal_itr[1:])
    pairs = sum(result.pairs_total for result in seeds)
    return [
        name,
        str(len(seeds)),
        partly_over_runs([result.itr for result in seeds], ".3f"),
        " ".join(f"{value:.3f}" for value in new),
        f"{floor:.0e}",
        partly_over_runs([result.later_share for result in seeds], ".1%"),
        shown_over_runs([result.later_gain for result in seeds], "+.4f"),
        f"{sum(result.pairs_novel for result in seeds)} of {pairs}",
        f"{sum(result.pairs_positive for result in seeds)} of {pairs}",
    ]


def _removals(results: Sequence[TransportResult]) -> list[RemovalFigures]:
    return [result.removal for result in results if result.removal is not None]


def _removal_table(measured: Mapping[str, RemovalFigures]) -> Table:
    """The mean, largest and smallest cost of each kind of removal."""
    rows = []
    for name, removal in measured.items():
        for costs, words in (
            (removal.skip, "without a mixer pass"),
            (removal.ffn_off, "without an ffn"),
            (removal.swap_order, "with an ffn before its mixer"),
        ):
            costs = sorted(costs, key=lambda cost: cost.delta_nll.value)
            if costs:
                mean = sum(cost.delta_nll.value for cost in costs) / len(costs)
                resolved = sum(cost.delta_nll.lower > 0 for cost in costs)
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


def _cost(cost: RemovalCost) -> str:
    change = cost.delta_nll
    where = f"layer {cost.layer}, pass {cost.pass_number}"
    return f"{change.value:+.4f} [{change.lower:+.4f}, {change.upper:+.4f}], {where}"
