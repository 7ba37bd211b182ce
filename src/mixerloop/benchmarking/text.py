"""Benchmarks as text: a line about the machine, a table, and how to read the table."""

from mixerloop import paper
from mixerloop.benchmarking.core_speed import CoreBench
from mixerloop.benchmarking.decode_speed import DecodeBench
from mixerloop.benchmarking.measure import Quartiles, header
from mixerloop.benchmarking.operator_speed import OperatorBench, OperatorCase
from mixerloop.benchmarking.prefill_speed import PrefillBench, PrefillCase
from mixerloop.benchmarking.training_speed import TrainBench, TrainCase
from mixerloop.benchmarking.transport_speed import TransportBench
from mixerloop.text_tables import table_of, text_of


def operator_text(bench: OperatorBench) -> str:
    """A table for each shape, with a row for each implementation."""
    return "\n".join((_machine(), *map(_operator_case, bench.shapes)))


def operator_line(case: OperatorCase) -> str:
    """A shape that was timed, while others are still to come."""
    return f"{case.name}: {_to_best_peer(case)}"


def _operator_case(case: OperatorCase) -> str:
    batch, tokens, heads, d_head = case.shape
    table = table_of(
        *("", "forward, ms", "forward and backward, ms", "repeats", "over ours"),
    )
    for name, forward in case.forward.items():
        both, repeats = case.forward_backward.get(name), case.repeats[name]
        ratios = (case.ratios_forward.get(name), case.ratios_forward_backward.get(name))
        table.add_row(
            name if case.dtypes[name] == "float32" else f"{name} ({case.dtypes[name]})",
            _spread(forward),
            "" if both is None else _spread(both),
            " / ".join(map(str, repeats.values())),
            " / ".join(f"{ratio.median:.2f} x" for ratio in ratios if ratio is not None),
        )
    tokens_text = f"{tokens:,} token{'s' if tokens > 1 else ''}"
    of_calls = f", mean of {case.calls} calls in a row" if case.calls > 1 else ""
    lines = [
        f"\n{case.name}: batch {batch}, {tokens_text}, {heads} heads of {d_head}, "
        f"decay per {case.decay}{of_calls}",
        text_of(table),
        _to_best_peer(case),
    ]
    if (over := case.channel_over_scalar) is not None:
        lines.append(
            f"a decay per channel takes {over['forward'].median:.2f} x forward and "
            f"{over['forward_backward'].median:.2f} x with backward of the time with one per head"
        )
    lines += [f"{name} is left out: it {reason}" for name, reason in case.left_out.items()]
    lines += [
        f"{name} is missing: see mixerloop doctor; make peers installs what others have"
        for name in case.missing
    ]
    return "\n".join(lines)


def _to_best_peer(case: OperatorCase) -> str:
    """Our speedup over the peer that is hardest to beat, in each direction."""
    parts = [
        f"{case.compared[direction]} is {_times(ratio, quartiles)} as fast as "
        f"{case.best_peer[direction]} {words}"
        for direction, words, ratio, quartiles in (
            (
                "forward",
                "forward",
                case.ratio_forward_to_best_peer,
                case.ratio_forward_to_best_peer_quartiles,
            ),
            (
                "forward_backward",
                "with backward",
                case.ratio_forward_backward_to_best_peer,
                case.ratio_forward_backward_to_best_peer_quartiles,
            ),
        )
        if ratio is not None and quartiles is not None
    ]
    return ", ".join(parts) if parts else f"{case.best}: no peer was timed"


def prefill_text(bench: PrefillBench) -> str:
    """A table of all sizes and batches, and the paper's figures."""
    table = table_of(
        *("size", "batch", "no loop, ms", "mixer, ms", "full, ms", "mixer over full", "by work")
    )
    for case in bench.cases:
        table.add_row(
            case.size,
            str(case.batch),
            *(_spread(taken) for taken in case.milliseconds.values()),
            _times(case.mixer_over_full, case.mixer_over_full_quartiles),
            f"{case.flop_limit:.2f} x",
        )
    facts = bench.provenance
    return "\n".join(
        (
            _machine(),
            text_of(table),
            f"{bench.cases[0].length:,} tokens, last-token logits, {facts['compute_dtype']} on "
            f"{facts['device']}; by work: what the projections alone would allow",
            f"the paper, on a GPU: {paper.PREFILL}",
        )
    )


def prefill_line(case: PrefillCase) -> str:
    """A line of progress about a case of prefill."""
    return f"{case.size}, batch {case.batch}: {case.mixer_over_full:.2f} x"


def decode_text(bench: DecodeBench) -> str:
    """A table of all prefixes, and the speedup over a forward pass on the whole text."""
    figures = bench.figures
    table = table_of("tokens before", "ms/token", "tokens/s", "to the first", "state KiB")
    for case in figures.cases:
        table.add_row(
            f"{case.prefix:,}",
            _spread(case.milliseconds),
            f"{case.tokens_per_second:,.0f}",
            f"{case.ratio_to_first:.3f}",
            f"{case.state_bytes / 1024:,.0f}",
        )
    low, high = figures.recompute_over_decode_quartiles
    return "\n".join(
        (
            _machine(),
            text_of(table),
            f"reading all {figures.recomputed_prefix:,} again takes "
            f"{figures.recompute_milliseconds.median:,.0f} ms: decoding is "
            f"{figures.recompute_over_decode:.0f} x [{low:.0f}, {high:.0f}] faster",
        )
    )


def train_text(bench: TrainBench) -> str:
    """A table of the training steps of all loops, or of all mixers."""
    if bench.mixers:
        return _mixers_text(bench)
    table = table_of("loop", "step, ms", "products alone, ms", "tokens/s", "step over products")
    for case in bench.cases:
        low, high = case.gemm_floor_ratio_quartiles
        table.add_row(
            case.loop,
            _spread(case.step_milliseconds),
            _spread(case.gemm_milliseconds),
            f"{case.tokens_per_second:,.0f}",
            f"{case.gemm_floor_ratio:.2f} [{low:.2f}, {high:.2f}]",
        )
    first = bench.cases[0]
    return "\n".join(
        (
            _machine(),
            text_of(table),
            f"{first.size}, {first.batch} x {first.length:,} tokens, {first.compute_dtype}; "
            "products: every projection and the head, forward and backward",
        )
    )


def _mixers_text(bench: TrainBench) -> str:
    table = table_of(
        *("loop", "mixer", "M parameters", "step, ms", "over gated_delta_net", "over transformers")
    )
    for case in bench.mixers:
        over = case.over_transformers
        table.add_row(
            *(case.loop, case.mixer, f"{case.parameters / 1e6:.2f}"),
            _spread(case.step_milliseconds),
            _times(case.over_gated_delta_net.median, case.over_gated_delta_net[1:]),
            "" if over is None else _times(over.median, over[1:]),
        )
    return "\n".join((_machine(), text_of(table), f"in {bench.provenance['compute_dtype']}"))


def train_line(case: TrainCase) -> str:
    """A line of progress about a case of training."""
    return f"{case.size} {case.loop}: {case.gemm_floor_ratio:.2f}"


def transport_text(bench: TransportBench) -> str:
    """A table of the three ways to measure transport."""
    figures = bench.figures
    table = table_of("", "ms", "over shared")
    ratios = (
        "",
        _times(figures.plain_over_shared, figures.plain_over_shared_quartiles),
        _times(figures.batched_plain_over_shared, figures.batched_plain_over_shared_quartiles),
    )
    for (name, taken), ratio in zip(figures.milliseconds.items(), ratios, strict=True):
        table.add_row(name, _spread(taken), ratio)
    return "\n".join(
        (
            _machine(),
            f"{figures.size} {figures.schedule}: {figures.windows} windows of {figures.context} "
            f"tokens, {figures.positions} positions, float32",
            text_of(table),
            f"shared is {figures.plain_over_shared:.1f} x as fast as a forward per policy and "
            f"window; by work alone {figures.work_limit:.1f} x; largest difference "
            f"{figures.largest_difference:.0e}",
        )
    )


def core_text(bench: CoreBench) -> str:
    """A table of both scorers of CORE."""
    figures = bench.figures
    table = table_of("", "ms", "tokens run", "over shared")
    ratio = _times(figures.plain_over_shared, figures.plain_over_shared_quartiles)
    tokens = {"plain": figures.tokens_plain, "shared": figures.tokens_shared}
    for name, taken in figures.milliseconds.items():
        over = ratio if name == "plain" else ""
        table.add_row(name, _spread(taken), f"{tokens[name]:,}", over)
    return "\n".join(
        (
            _machine(),
            f"{figures.model}, {figures.schedule}: {figures.examples} examples of {figures.tasks} "
            f"tasks, context {figures.context:,}, vocabulary {figures.vocab_size:,}, float32, "
            f"{figures.threads} threads",
            text_of(table),
            f"shared prefixes are {figures.plain_over_shared:.2f} x as fast and run "
            f"{figures.tokens_plain / figures.tokens_shared:.2f} x fewer tokens; by work alone "
            f"{figures.work_limit:.2f} x; {figures.decisions_differing} decisions differ",
        )
    )


def _machine() -> str:
    return f"# {header()}"


def _spread(taken: Quartiles) -> str:
    median, lower, upper = taken
    digits = 4 if median < 0.1 else 2 if median < 10 else 1 if median < 100 else 0
    return f"{median:,.{digits}f} [{lower:,.{digits}f}, {upper:,.{digits}f}]"


def _times(ratio: float, quartiles: tuple[float, float]) -> str:
    low, high = quartiles
    return f"{ratio:.2f} x [{low:.2f}, {high:.2f}]"
