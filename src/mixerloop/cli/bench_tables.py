"""What `mixerloop bench` prints of its results."""

from typing import TYPE_CHECKING

from mixerloop import paper
from mixerloop.text_tables import print_table, table_of

if TYPE_CHECKING:
    from mixerloop.benchmarking.core_speed import CoreResult
    from mixerloop.benchmarking.decode_speed import DecodeResult
    from mixerloop.benchmarking.measure import Quartiles
    from mixerloop.benchmarking.operator_speed import OperatorCase
    from mixerloop.benchmarking.prefill_speed import PrefillCase
    from mixerloop.benchmarking.training_speed import TrainCase
    from mixerloop.benchmarking.transport_speed import TransportResult


def show_header() -> None:
    """One line on the machine."""
    from mixerloop.benchmarking.measure import header

    print(f"# {header()}")


def _spread(found: "Quartiles") -> str:
    median, lower, upper = found
    digits = 2 if median < 10 else 1 if median < 100 else 0
    return f"{median:,.{digits}f} [{lower:,.{digits}f}, {upper:,.{digits}f}]"


def _times(ratio: float, quartiles: tuple[float, float]) -> str:
    low, high = quartiles
    return f"{ratio:.2f} x [{low:.2f}, {high:.2f}]"


def show_operator(case: "OperatorCase") -> None:
    """One shape."""
    batch, tokens, heads, d_head = case.shape
    print(f"\n{case.name}: batch {batch}, {tokens:,} tokens, {heads} heads of {d_head}, float32")
    table = table_of("", "forward, ms", "forward and backward, ms")
    for name, forward in case.forward.items():
        table.add_row(name, _spread(forward), _spread(case.forward_backward[name]))
    print_table(table)
    if case.ratio_forward is not None and case.ratio_forward_backward is not None:
        print(
            f"{case.best} is {case.ratio_forward:.1f} x and {case.ratio_forward_backward:.1f} x as "
            "fast as the transformers fallback"
        )
    for name in case.missing:
        print(f"{name} is missing: see mixerloop doctor; make peers installs other people's rules")


def show_prefill(cases: "list[PrefillCase]", compute_dtype: str, device: str) -> None:
    """All sizes and batches, and the paper's."""
    table = table_of(
        *("size", "batch", "no loop, ms", "mixer, ms", "full, ms", "mixer over full", "by work")
    )
    for case in cases:
        table.add_row(
            case.size,
            str(case.batch),
            *(_spread(found) for found in case.milliseconds.values()),
            _times(case.mixer_over_full, case.mixer_over_full_quartiles),
            f"{case.flop_limit:.2f} x",
        )
    print_table(table)
    print(
        f"{cases[0].length:,} tokens, last-token logits, {compute_dtype} on {device}; by work: "
        "what the projections alone would allow"
    )
    print(f"the paper, on a GPU: {paper.PREFILL}")


def show_decode(found: "DecodeResult") -> None:
    """Every prefix, and the ratio to reading all again."""
    table = table_of("tokens before", "ms/token", "tokens/s", "to the first", "state KiB")
    for case in found.cases:
        table.add_row(
            f"{case.prefix:,}",
            _spread(case.milliseconds),
            f"{case.tokens_per_second:,.0f}",
            f"{case.ratio_to_first:.3f}",
            f"{case.state_bytes / 1024:,.0f}",
        )
    print_table(table)
    low, high = found.recompute_over_decode_quartiles
    print(
        f"reading all {found.recomputed_prefix:,} again takes "
        f"{found.recompute_milliseconds.median:,.0f} ms: decoding is "
        f"{found.recompute_over_decode:.0f} x [{low:.0f}, {high:.0f}] faster"
    )


def show_training(cases: "list[TrainCase]", compute_dtype: str) -> None:
    """All loops."""
    table = table_of("loop", "step, ms", "products alone, ms", "tokens/s", "step over products")
    for case in cases:
        low, high = case.gemm_floor_ratio_quartiles
        table.add_row(
            case.loop,
            _spread(case.step_milliseconds),
            _spread(case.gemm_milliseconds),
            f"{case.tokens_per_second:,.0f}",
            f"{case.gemm_floor_ratio:.2f} [{low:.2f}, {high:.2f}]",
        )
    print_table(table)
    print(
        f"{cases[0].size}, {cases[0].batch} x {cases[0].length:,} tokens, {compute_dtype}; "
        "products: every projection and the head, forward and backward"
    )


def show_transport(found: "TransportResult") -> None:
    """The three ways."""
    print(
        f"{found.size} {found.schedule}: {found.windows} windows of {found.context} tokens, "
        f"{found.positions} positions, float32"
    )
    table = table_of("", "ms", "over shared")
    ratios = (
        "",
        _times(found.plain_over_shared, found.plain_over_shared_quartiles),
        _times(found.batched_plain_over_shared, found.batched_plain_over_shared_quartiles),
    )
    for (name, taken), ratio in zip(found.milliseconds.items(), ratios, strict=True):
        table.add_row(name, _spread(taken), ratio)
    print_table(table)
    print(
        f"shared is {found.plain_over_shared:.1f} x as fast as a forward per policy and window; by "
        f"work alone {found.work_limit:.1f} x; largest difference {found.largest_difference:.0e}"
    )


def show_core(found: "CoreResult") -> None:
    """Both scorers."""
    print(
        f"{found.model}, {found.schedule}: {found.examples} examples of {found.tasks} tasks, "
        f"context {found.context:,}, vocabulary {found.vocab_size:,}, float32, {found.threads} "
        "threads"
    )
    table = table_of("", "ms", "tokens run", "over shared")
    ratio = _times(found.plain_over_shared, found.plain_over_shared_quartiles)
    tokens = {"plain": found.tokens_plain, "shared": found.tokens_shared}
    for name, taken in found.milliseconds.items():
        over = ratio if name == "plain" else ""
        table.add_row(name, _spread(taken), f"{tokens[name]:,}", over)
    print_table(table)
    print(
        f"shared prefixes are {found.plain_over_shared:.2f} x as fast and run "
        f"{found.tokens_plain / found.tokens_shared:.2f} x fewer tokens; by work alone "
        f"{found.work_limit:.2f} x; {found.decisions_differing} decisions differ"
    )
