"""`mixerloop evaluate`: measure trained models and compare them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from mixerloop.cli.evaluate_compare import COMPARE_HELP, Compare
from mixerloop.cli.evaluate_core import CORE_HELP, Core
from mixerloop.cli.saving_options import Evaluating
from mixerloop.cli.subject_options import where_kept
from mixerloop.config import Documents
from mixerloop.files import json_text
from mixerloop.progress_line import ProgressLine, counting
from mixerloop.results import PointEstimate, encode, estimate_text
from mixerloop.schedule import num_passes_of
from mixerloop.text_tables import print_table, table_of

if TYPE_CHECKING:
    from mixerloop.evaluation.hops_result import HopsResult
    from mixerloop.evaluation.nll_result import NllResult
    from mixerloop.evaluation.task_result import GroupAccuracy
    from mixerloop.transport.routing_result import RoutingResult

HELP = """Measure trained models, each figure with its interval, and compare them.

examples:
  mixerloop evaluate nll RUN
  mixerloop evaluate core RUN --bundle eval_bundle.zip
  mixerloop evaluate hops RUN
  mixerloop evaluate compare RUN RUN
"""
HOPS_HELP = """Accuracy by the number of hops, beside a guess.

examples:
  mixerloop evaluate hops runs/nano-hops-mixer_loop
  mixerloop evaluate hops RUN --schedule "mixer_loop(2)" --json
"""
TASK_HELP = """Accuracy on a synthetic task, by the groups of its questions, beside a guess.

A second table is for sequences about twice as long or deep as in training, if the task has them.

examples:
  mixerloop evaluate task RUN
  mixerloop evaluate task RUN --data data/hops --json
"""
ROUTING_HELP = """How many tokens change their experts from pass to pass, layer by layer.

examples:
  mixerloop evaluate routing RUN
  mixerloop evaluate routing RUN --schedule "ffn_loop(3)" --json
"""
NLL_HELP = """Next-token NLL and bits per byte of the held-out set, by document and position.

examples:
  mixerloop evaluate nll RUN
  mixerloop evaluate nll RUN --data data/other --out on-other-data
  mixerloop evaluate nll RUN --passes 1 2 3 4
"""


@dataclass(frozen=True, kw_only=True)
class Hops(Evaluating):
    """The options of `mixerloop evaluate hops`."""

    data: Path | None = None
    """A folder of hops; by default the data that the run was trained on."""
    sequences: int = 4096
    """Held-out sequences to read, 4,096 at most."""

    def run(self) -> None:
        """Measure the accuracy on hops, and print a table or JSON."""
        from mixerloop.evaluation.hops_accuracy import evaluate_hops

        subject = self.open()
        result = evaluate_hops(subject, data=self.data, sequences=self.sequences)
        if self.json:
            print(json_text(encode(result)), end="")
            return
        _show_hops(str(self.run_path), result)
        print(where_kept(subject, result))


@dataclass(frozen=True, kw_only=True)
class TaskAccuracy(Evaluating):
    """The options of `mixerloop evaluate task`."""

    data: Path | None = None
    """A folder of a synthetic task; by default the data that the run was trained on."""
    sequences: int = 4096
    """Held-out sequences to read, 4,096 at most."""

    def run(self) -> None:
        """Measure the accuracy on a synthetic task, and print a table or JSON."""
        from mixerloop.evaluation.task_accuracy import evaluate_task

        subject = self.open()
        result = evaluate_task(subject, data=self.data, sequences=self.sequences)
        if self.json:
            print(json_text(encode(result)), end="")
            return
        print(f"{self.run_path}, schedule {result.schedule}: {result.task}")
        _show_groups(result.group_name, result.accuracy_by_group)
        if result.longer_accuracy_by_group:
            print(f"{result.task}, about twice as long or deep as in training:")
            _show_groups(result.group_name, result.longer_accuracy_by_group)
        print(where_kept(subject, result))


def _show_groups(group_name: str, groups: "tuple[GroupAccuracy, ...]") -> None:
    table = table_of(group_name, "right", "95 % interval", "guess", "questions")
    for group in groups:
        right = group.accuracy
        interval = f"{right.lower:.3f} to {right.upper:.3f}"
        numbers = (f"{right.value:.3f}", interval, f"{group.guess:.3f}", f"{group.questions:,}")
        table.add_row(str(group.group), *numbers)
    print_table(table)


def _show_hops(run: str, result: "HopsResult") -> None:
    print(f"{run}, schedule {result.schedule}")
    print("hops  right  95 % interval  guess  questions")
    for hop in result.accuracy_by_hop:
        right = hop.accuracy
        print(
            f"{hop.hops:4}  {right.value:.3f}  {right.lower:.3f} to {right.upper:.3f}  "
            f"{hop.guess:.3f}  {hop.questions:,}"
        )


@dataclass(frozen=True, kw_only=True)
class HeldOutNLL(Evaluating):
    """The options of `mixerloop evaluate nll`."""

    data: Path | None = None
    """A prepared folder; by default the data that the run was trained on."""
    context: int | None = None
    """Tokens of a window; by default the context of the run."""
    passes: tuple[int, ...] = ()
    """Also measure the model with only so many passes of each loop."""
    documents: Documents = "all"
    """Score all held-out documents, the third of them that tunes a study, or the others."""

    def run(self) -> None:
        """Measure the held-out NLL, and print tables or JSON."""
        from mixerloop.evaluation.held_out_nll import evaluate_nll

        subject = self.open()
        line = None if self.json else ProgressLine()
        result = evaluate_nll(
            subject,
            data=self.data,
            context=self.context,
            passes=self.passes,
            documents=self.documents,
            progress=line and counting(line, "tokens"),
        )
        if line is not None:
            line.close()
        if self.json:
            print(json_text(encode(result)), end="")
            return
        _show_nll(str(self.run_path), result)
        most = num_passes_of(subject.schedule)
        for number, nll in result.by_passes.items():
            print(f"after {number} of {most} passes: NLL {estimate_text(nll.nll, '.4f')}")
        for warning in result.warnings:
            print(f"warning: {warning}")
        print(where_kept(subject, result))


def _show_nll(run: str, result: "NllResult") -> None:
    counts = f"{result.tokens:,} tokens of {result.documents:,} documents"
    print(f"{run}, schedule {result.schedule}: {counts}")
    print(f"NLL            {estimate_text(result.nll, '.4f')} nats per token")
    if result.bits_per_byte is not None:
        print(f"bits per byte  {estimate_text(result.bits_per_byte, '.4f')}")
    print(f"most likely    {estimate_text(result.accuracy, '.4f')} of the tokens")
    table = table_of("tokens before", "NLL", "95 % interval")
    for at in result.by_position:
        place = f"{at.first:,}" if at.first == at.last else f"{at.first:,} to {at.last:,}"
        interval = "no interval"
        if not isinstance(at.nll, PointEstimate):
            interval = f"{at.nll.lower:.4f} to {at.nll.upper:.4f}"
        table.add_row(place, f"{at.nll.value:.4f}", interval)
    print_table(table)


@dataclass(frozen=True, kw_only=True)
class Routing(Evaluating):
    """The options of `mixerloop evaluate routing`."""

    data: Path | None = None
    """A prepared folder; by default the data that the run was trained on."""
    windows: int = 16
    """Held-out windows to measure."""
    context: int = 128
    """Tokens of a window."""
    second_draw: bool = False
    """Draw other windows, none of which is in the first draw."""
    seed: int = 0
    """Seed of the draw and of the resampling."""

    def run(self) -> None:
        """Measure routing divergence, and print a table or JSON."""
        from mixerloop.transport.measurement import Looking
        from mixerloop.transport.routing import measure_routing

        looking = Looking(
            windows=self.windows,
            positions=1,
            context=self.context,
            second_draw=self.second_draw,
            seed=self.seed,
        )
        subject = self.open()
        result = measure_routing(subject, looking, data=self.data)
        if self.json:
            print(json_text(encode(result)), end="")
            return
        _show_routing(str(self.run_path), result)
        print(where_kept(subject, result))


def _show_routing(run: str, result: "RoutingResult") -> None:
    print(f"{run}, schedule {result.schedule}: {result.windows} windows of {result.context} tokens")
    table = table_of(
        *("layer", "pass", "tokens that change", "95 % interval", "experts that are new", "chance")
    )
    for layer in result.layers:
        for number, (changed, moved) in enumerate(
            zip(layer.changed, layer.moved, strict=True), start=2
        ):
            table.add_row(
                *(str(layer.layer), str(number), f"{changed.value:.3f}"),
                f"{changed.lower:.3f} to {changed.upper:.3f}",
                *(f"{moved.value:.3f}", f"{layer.moved_by_chance:.3f}"),
            )
    print_table(table)


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """The options of `mixerloop evaluate`."""

    what: (
        Annotated[HeldOutNLL, tyro.conf.subcommand("nll", description=NLL_HELP)]
        | Annotated[Core, tyro.conf.subcommand("core", description=CORE_HELP)]
        | Annotated[Hops, tyro.conf.subcommand("hops", description=HOPS_HELP)]
        | Annotated[TaskAccuracy, tyro.conf.subcommand("task", description=TASK_HELP)]
        | Annotated[Routing, tyro.conf.subcommand("routing", description=ROUTING_HELP)]
        | Annotated[Compare, tyro.conf.subcommand("compare", description=COMPARE_HELP)]
    )

    def run(self) -> None:
        """Run the measurement that the subcommand names."""
        self.what.run()
