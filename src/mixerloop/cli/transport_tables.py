"""What `mixerloop transport` prints of its result."""

from typing import Any

from mixerloop import paper
from mixerloop.text_tables import print_table, table_of


def show(result: dict[str, Any]) -> None:
    """The passes in a table, what the paper counts, and the paper's figures."""
    print(
        f"schedule {result['schedule']}, {result['compute_dtype']}; {result['windows']} windows of "
        f"{result['context']} tokens, {len(result['positions'])} positions each"
    )
    control = result["control"]
    if control is not None:
        print("trained:")
    _show_passes(result)
    if (removed := result["removal"]) is not None:
        _show_removal(removed)
    if control is not None:
        print("control, the same weights before training:")
        _show_passes(control)
    wider = result["noise_floor"]["wider_type"]
    print(f"rounding: what the marginal ITR of the first windows loses when measured in {wider}")
    for (size, name), theirs in paper.TRANSPORT.items():
        if name in ("mixer_loop", "control") and theirs.marginal_itr is not None:
            new = " ".join(f"{value:.3f}" for value in theirs.marginal_itr)
            print(
                f"the paper, {size} {name}, in {paper.COMPUTE_DTYPE}: ITR {theirs.itr:.3f}, "
                f"marginal {new}, later gain {theirs.later_gain:+.2g} nats"
            )


def _show_passes(result: dict[str, Any]) -> None:
    print(f"ITR {_number(result['itr'], '.3f')} {_interval(result['itr_interval'], '.3f')}")
    table = table_of(
        *("pass", "ITR so far", "marginal ITR", "95 % interval", "rounding", "H2"),
        *("gain, nats", "95 % interval", "top-1 flips"),
    )
    for index in range(len(result["marginal_itr"])):
        new, gain = result["marginal_itr_interval"][index], result["target_gain_interval"][index]
        table.add_row(
            str(index + 1),
            _number(result["itr_by_depth"][index], ".3f"),
            f"{result['marginal_itr'][index]:.3f}",
            f"{new[0]:.3f} to {new[1]:.3f}",
            f"{result['noise_floor']['marginal_itr'][index]:.1e}",
            f"{result['hellinger_squared'][index]:.2e}",
            f"{result['target_gain'][index]:+.4f}",
            f"{gain[0]:+.4f} to {gain[1]:+.4f}",
            f"{result['top1_flips'][index]:.3f}",
        )
    print_table(table)
    print(
        f"later passes: {_number(result['later_share'], '.1%')} "
        f"{_interval(result['later_share_interval'], '.1%')} of the effect, "
        f"{result['later_gain']:+.4f} nats; of {result['pairs_total']} (layer, pass) pairs "
        f"{result['pairs_novel']} have a marginal ITR above 0.5 and {result['pairs_positive']} a "
        "positive gain"
    )


def _number(value: float | None, how: str) -> str:
    """A figure; there is none where nothing moves."""
    return "-" if value is None else format(value, how)


def _interval(ends: list[float | None], how: str) -> str:
    low, high = (_number(end, how) for end in ends)
    return f"[{low}, {high}]"


def _show_removal(removed: dict[str, Any]) -> None:
    for kind, title in (
        ("skip", "NLL without a mixer pass"),
        ("ffn_off", "NLL without an ffn"),
        ("swap_order", "NLL with an ffn before its mixer"),
    ):
        parts = (f"{one['layer']}.{one['pass']} {one['delta_nll']:+.4f}" for one in removed[kind])
        print(f"{title}, by layer.pass: {', '.join(parts)}")
    value = removed["spearman_marginal_itr_and_skip"]
    if value is not None:
        ends = _interval(removed["spearman_marginal_itr_and_skip_interval"], ".2f")
        what = "marginal ITR and the cost of leaving a pass out"
        print(f"rank correlation of {what}: {value:.2f} {ends}")
