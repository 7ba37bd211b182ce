"""`mixerloop bench`: how fast the operator, prefill, decoding and training are, as ratios."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mixerloop import machine, paper, runs
from mixerloop.cli.tables import print_table, table_of
from mixerloop.config import ComputeDtype, Implementation, ImplementationChoice, preset
from mixerloop.notation import resolve
from mixerloop.strict import one_of

if TYPE_CHECKING:
    from mixerloop.benchmarking.measure import Quartiles
    from mixerloop.benchmarking.operator import OperatorCase
    from mixerloop.benchmarking.prefill import PrefillCase
    from mixerloop.benchmarking.training import TrainCase

HELP = """Measure speed, after a check that what is timed computes the right thing.

Everything of one table is timed in turn in one run, so that noise falls on all alike.

examples:
  mixerloop bench operator
  mixerloop bench prefill --sizes 15m 110m --batches 1 4 8 16
  mixerloop bench decode --size 15m
  mixerloop bench train --size 15m --compute-dtype bfloat16
"""
OPERATOR_HELP = """The gated delta rule: ours beside `transformers` and fla-core on this CPU.

examples:
  mixerloop bench operator
  mixerloop bench operator --shapes 15m --repeats 3 --json
"""
PREFILL_HELP = """The paper's protocol: 1,024 tokens, last-token logits, 6 warm-up and 20 timed.

examples:
  mixerloop bench prefill
  mixerloop bench prefill --sizes 15m --batches 8 --json
"""
DECODE_HELP = """One more token after prefixes of 64 to 8,192, and against reading all again.

examples:
  mixerloop bench decode
  mixerloop bench decode --size nano --schedule full_loop
"""
TRAIN_HELP = """Whole training steps against their matrix products alone.

examples:
  mixerloop bench train
  mixerloop bench train --size 15m --loops mixer_loop --batch 1 --repeats 3
"""
BUSY = 0.25  # of a core


@dataclass(frozen=True, kw_only=True)
class Operator:
    """The options of `mixerloop bench operator`."""

    shapes: tuple[str, ...] = ("15m", "110m", "long")
    """Which shapes: 15m, 110m, long."""
    repeats: int = 10
    """Timed calls of each."""
    strong_decay: bool = False
    """Decays down to -8, which make numbers too small for a float."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Measure and show."""
        from mixerloop.benchmarking.operator import SHAPES, measure_operator

        _check_positive(repeats=self.repeats)
        _check_known("shape", self.shapes, tuple(SHAPES))
        neighbours = machine.Neighbours()
        cases = [
            measure_operator(
                name, SHAPES[name], repeats=self.repeats, strong_decay=self.strong_decay
            )
            for name in self.shapes
        ]
        busy = _warn_if_busy(neighbours)
        if self.json:
            _print_json(busy, shapes=cases, compute_dtype="float32", repeats=self.repeats)
        else:
            _header()
            for case in cases:
                _show_operator(case)


@dataclass(frozen=True, kw_only=True)
class Prefill:
    """The options of `mixerloop bench prefill`."""

    sizes: tuple[str, ...] = ("15m",)
    """Presets."""
    batches: tuple[int, ...] = (1, 4, 8)
    """Prompts read at once."""
    length: int = 1024
    """Tokens of a prompt."""
    compute_dtype: ComputeDtype = "float32"
    """The type of the projections."""
    warmup: int = 6
    """Calls before the timed ones."""
    repeats: int = 20
    """Timed calls of each loop."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Measure and show."""
        from mixerloop.benchmarking import prefill

        machine.keep_freed_memory()
        _check_positive(length=self.length, repeats=self.repeats, warmup=self.warmup)
        _check_some("batch", self.batches)
        _check_some("size", self.sizes)
        for batch in self.batches:
            _check_positive(batches=batch)
        for size in self.sizes:
            preset(size)
        neighbours = machine.Neighbours()
        cases = []
        for size in self.sizes:
            models = prefill.Prefill(size, compute_dtype=self.compute_dtype)
            for batch in self.batches:
                case = models.measure(
                    batch, length=self.length, warmup=self.warmup, repeats=self.repeats
                )
                cases.append(case)
                print(f"{size}, batch {batch}: {case.mixer_over_full:.2f} x", file=sys.stderr)
        busy = _warn_if_busy(neighbours)
        if self.json:
            _print_json(busy, cases=cases, compute_dtype=self.compute_dtype, repeats=self.repeats)
        else:
            _header()
            _show_prefill(cases, self.compute_dtype)


@dataclass(frozen=True, kw_only=True)
class Decode:
    """The options of `mixerloop bench decode`."""

    size: str = "15m"
    """A preset."""
    schedule: str = "mixer_loop"
    """Notation or a named loop."""
    repeats: int = 60
    """Timed tokens after each prefix."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Measure and show."""
        from mixerloop.benchmarking.decode import measure_decode

        machine.keep_freed_memory()
        _check_positive(repeats=self.repeats)
        resolve(self.schedule, preset(self.size).num_layers)
        neighbours = machine.Neighbours()
        found = measure_decode(
            self.size,
            self.schedule,
            repeats=self.repeats,
            recompute_repeats=max(3, self.repeats // 6),
        )
        busy = _warn_if_busy(neighbours)
        if self.json:
            _print_json(busy, **asdict(found), compute_dtype="float32", repeats=self.repeats)
            return
        _header()
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


@dataclass(frozen=True, kw_only=True)
class Train:
    """The options of `mixerloop bench train`."""

    size: str = "15m"
    """A preset."""
    loops: tuple[str, ...] = ("no_loop", "mixer_loop", "full_loop")
    """Schedules to train."""
    batch: int = 4
    """Windows of a step."""
    length: int = 1024
    """Tokens of a window."""
    compute_dtype: ComputeDtype = "bfloat16"
    """The type of the projections."""
    implementation: str = "auto"
    """auto, native, chunked or recurrent."""
    repeats: int = 5
    """Timed steps."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Measure and show."""
        from mixerloop.benchmarking.training import measure_training

        machine.keep_freed_memory()
        _check_positive(batch=self.batch, length=self.length, repeats=self.repeats)
        implementation = one_of(ImplementationChoice, self.implementation, "implementation")
        _check_some("loop", self.loops)
        for loop in self.loops:
            resolve(loop, preset(self.size).num_layers)
        neighbours = machine.Neighbours()
        cases = []
        for loop in self.loops:
            case = measure_training(
                self.size,
                loop,
                batch=self.batch,
                length=self.length,
                compute_dtype=self.compute_dtype,
                repeats=self.repeats,
                implementation=implementation,
            )
            cases.append(case)
            print(f"{self.size} {loop}: {case.gemm_floor_ratio:.2f}", file=sys.stderr)
        busy = _warn_if_busy(neighbours)
        if self.json:
            _print_json(
                busy,
                cases=cases,
                compute_dtype=self.compute_dtype,
                repeats=self.repeats,
                implementation=implementation,
            )
        else:
            _header()
            _show_training(cases, self.compute_dtype)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The options of `mixerloop bench`."""

    what: (
        Annotated[Operator, tyro.conf.subcommand("operator", description=OPERATOR_HELP)]
        | Annotated[Prefill, tyro.conf.subcommand("prefill", description=PREFILL_HELP)]
        | Annotated[Decode, tyro.conf.subcommand("decode", description=DECODE_HELP)]
        | Annotated[Train, tyro.conf.subcommand("train", description=TRAIN_HELP)]
    )

    def run(self) -> None:
        """Run the one that was asked for."""
        self.what.run()


def _warn_if_busy(neighbours: machine.Neighbours) -> float | None:
    """How many cores others kept busy; a busy machine is no place to measure, so say so."""
    busy = neighbours.busy_cores()
    if busy is not None and busy > BUSY:
        print(f"others kept {busy:.1f} cores busy meanwhile; trust no figure", file=sys.stderr)
    return busy


def _check_positive(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")


def _check_some(kind: str, given: Sequence[object]) -> None:
    if not given:
        raise ValueError(f"name at least one {kind}")


def _check_known(kind: str, given: Sequence[str], known: Sequence[str]) -> None:
    from mixerloop.strict import suggest

    _check_some(kind, given)
    for name in given:
        if name not in known:
            raise ValueError(f"unknown {kind} '{name}'; {suggest(name, known)}")


def _print_json(
    busy: float | None, *, implementation: ImplementationChoice = "auto", **found: Any
) -> None:
    from mixerloop.ops.gated_delta_rule import choose_implementation

    facts = {key: found.pop(key) for key in ("compute_dtype", "repeats")}
    chosen: Implementation = choose_implementation(implementation)
    result = {
        key: [one if isinstance(one, dict) else asdict(one) for one in value]
        if isinstance(value, list)
        else value
        for key, value in found.items()
    }
    result["provenance"] = runs.provenance(seed=0, implementation=chosen, busy_cores=busy, **facts)
    print(runs.to_json(result), end="")


def _header() -> None:
    from mixerloop.benchmarking.measure import header

    print(f"# {header()}")


def _spread(found: "Quartiles") -> str:
    median, lower, upper = found
    digits = 2 if median < 10 else 1 if median < 100 else 0
    return f"{median:,.{digits}f} [{lower:,.{digits}f}, {upper:,.{digits}f}]"


def _show_operator(case: "OperatorCase") -> None:
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


def _show_prefill(cases: "list[PrefillCase]", compute_dtype: str) -> None:
    table = table_of(
        *("size", "batch", "no loop, ms", "mixer, ms", "full, ms", "mixer over full", "by work")
    )
    for case in cases:
        low, high = case.mixer_over_full_quartiles
        table.add_row(
            case.size,
            str(case.batch),
            *(_spread(found) for found in case.milliseconds.values()),
            f"{case.mixer_over_full:.2f} x [{low:.2f}, {high:.2f}]",
            f"{case.flop_limit:.2f} x",
        )
    print_table(table)
    print(
        f"{cases[0].length:,} tokens, last-token logits, {compute_dtype}; by work: what the "
        "projections alone would allow"
    )
    print(f"the paper, on a GPU: {paper.PREFILL}")


def _show_training(cases: "list[TrainCase]", compute_dtype: str) -> None:
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
