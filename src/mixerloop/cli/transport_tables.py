"""The tables that `mixerloop transport` prints."""

from typing import TYPE_CHECKING

from mixerloop import paper
from mixerloop.results import PartialEstimate
from mixerloop.text_tables import print_table, table_of

if TYPE_CHECKING:
    from mixerloop.transport.result import RemovalFigures, TransportFigures, TransportResult


def show(result: "TransportResult") -> None:
    """Print tables of the passes, the cost of removal, the control, and the paper's figures."""
    print(
        f"schedule {result.schedule}, {result.compute_dtype}; {result.windows} windows of "
        f"{result.context} tokens, {len(result.positions)} positions each"
    )
    if result.control is not None:
        print("trained:")
    _show_passes(result)
    if result.removal is not None:
        _show_removal(result.removal)
    if result.control is not None:
        print("control, the same weights before training:")
        _show_passes(result.control)
    wider = result.noise_floor.wider_type
    print(f"rounding: what the marginal ITR of the first windows loses when measured in {wider}")
    for (size, name), theirs in paper.TRANSPORT.items():
        if name in ("mixer_loop", "control") and theirs.marginal_itr is not None:
            new = " ".join(f"{value:.3f}" for value in theirs.marginal_itr)
            print(
                f"the paper, {size} {name}, in {paper.COMPUTE_DTYPE}: ITR {theirs.itr:.3f}, "
                f"marginal {new}, later gain {theirs.later_gain:+.2g} nats"
            )


def _show_passes(result: "TransportFigures") -> None:
    print(f"ITR {_with_interval(result.itr, '.3f')}")
    table = table_of(
        *("pass", "ITR so far", "marginal ITR", "95 % interval", "rounding", "H2"),
        *("gain, nats", "95 % interval", "top-1 flips"),
    )
    for index, (new, gain) in enumerate(zip(result.marginal_itr, result.target_gain, strict=True)):
        table.add_row(
            str(index + 1),
            _number(result.itr_by_depth[index].value, ".3f"),
            f"{new.value:.3f}",
            f"{new.lower:.3f} to {new.upper:.3f}",
            f"{result.noise_floor.marginal_itr[index]:.1e}",
            f"{result.hellinger_squared[index].value:.2e}",
            f"{gain.value:+.4f}",
            f"{gain.lower:+.4f} to {gain.upper:+.4f}",
            f"{result.top1_flips[index].value:.3f}",
        )
    print_table(table)
    print(
        f"later passes: {_with_interval(result.later_share, '.1%')} of the effect, "
        f"{result.later_gain.value:+.4f} nats; of {result.pairs_total} (layer, pass) pairs "
        f"{result.pairs_novel} have a marginal ITR above 0.5 and {result.pairs_positive} a "
        "positive gain"
    )


def _number(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


def _with_interval(estimate: PartialEstimate, how: str) -> str:
    value, low, high = (_number(x, how) for x in (estimate.value, estimate.lower, estimate.upper))
    return f"{value} [{low}, {high}]"


def _show_removal(removal: "RemovalFigures") -> None:
    for costs, title in (
        (removal.skip, "NLL without a mixer pass"),
        (removal.ffn_off, "NLL without an ffn"),
        (removal.swap_order, "NLL with an ffn before its mixer"),
    ):
        parts = (f"{cost.layer}.{cost.pass_number} {cost.delta_nll.value:+.4f}" for cost in costs)
        print(f"{title}, by layer.pass: {', '.join(parts)}")
    correlation = removal.spearman_marginal_itr_and_skip
    if correlation.value is not None:
        what = "marginal ITR and the cost of leaving a pass out"
        print(f"rank correlation of {what}: {_with_interval(correlation, '.2f')}")
