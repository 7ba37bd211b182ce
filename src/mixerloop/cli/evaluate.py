"""`mixerloop evaluate`: what a trained model can do."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mixerloop import runs
from mixerloop.cli.evaluate_compare import COMPARE_HELP, Compare
from mixerloop.cli.evaluate_core import CORE_HELP, Core
from mixerloop.cli.opened import Opened, Opening
from mixerloop.cli.progress_line import ProgressLine
from mixerloop.cli.tables import print_table, table_of
from mixerloop.config import check_fits
from mixerloop.notation import notation
from mixerloop.schedule import first_passes, num_passes_of

if TYPE_CHECKING:
    from mixerloop.evaluation.hops_accuracy import HopsAccuracy
    from mixerloop.evaluation.nll import NLL, HeldOut
    from mixerloop.intervals import Estimate

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
NLL_HELP = """Next-token NLL and bits per byte of everything held out, by document and position.

examples:
  mixerloop evaluate nll RUN
  mixerloop evaluate nll RUN --data data/other --out on-other-data
  mixerloop evaluate nll RUN --passes 1 2 3 4
"""


@dataclass(frozen=True, kw_only=True)
class Hops(Opening):
    """The options of `mixerloop evaluate hops`."""

    data: Path | None = None
    """A folder of hops; the one the run was trained on unless you say so."""
    sequences: int = 4096
    """Held-out sequences to read, 4,096 at most."""

    def run(self) -> None:
        """Measure, keep and print."""
        from mixerloop.data.batches import fingerprint, hops_settings
        from mixerloop.data.hops import Hops as HopsTask
        from mixerloop.evaluation.hops_accuracy import hops_accuracy
        from mixerloop.evaluation.kept_results import HOPS
        from mixerloop.ops.precision import compute_in

        if self.sequences < 2:
            raise ValueError(f"--sequences must be at least 2, got {self.sequences}")
        opened = self.open()
        data = opened.data(self.data)
        settings = hops_settings(data)
        if settings is None:
            raise ValueError(f"{data}: not a folder of hops; give one with --data")
        hops = HopsTask(settings, "held_out")
        check_fits(data, hops.vocab_size, opened.config.model.vocab_size)
        logits_at = partial(opened.model, schedule=opened.schedule)
        with compute_in(opened.compute_dtype, opened.device.type):
            found = hops_accuracy(
                logits_at, hops, num_sequences=self.sequences, device=opened.device
            )
        result = opened.heading() | {
            "accuracy_by_hop": [
                asdict(one) | {"accuracy": one.accuracy._asdict()} for one in found
            ],
            "provenance": opened.provenance(data=fingerprint(data)),
        }
        opened.keep(HOPS, result)
        if self.json:
            print(runs.to_json(result), end="")
        else:
            _show_hops(str(self.run_path), notation(opened.schedule), found)
            print(opened.where_kept(HOPS))


def _show_hops(run: str, schedule: str, found: "list[HopsAccuracy]") -> None:
    print(f"{run}, schedule {schedule}")
    print("hops  right  95 % interval  guess  questions")
    for one in found:
        value, lower, upper = one.accuracy
        print(
            f"{one.hops:4}  {value:.3f}  {lower:.3f} to {upper:.3f}  {one.guess:.3f}  "
            f"{one.questions:,}"
        )


@dataclass(frozen=True, kw_only=True)
class HeldOutNLL(Opening):
    """The options of `mixerloop evaluate nll`."""

    data: Path | None = None
    """A prepared folder; the one the run was trained on unless you say so."""
    context: int | None = None
    """Tokens of a window; the run's own unless you say so."""
    passes: tuple[int, ...] = ()
    """Also stop after so many passes of each loop: what would the model be without the later?"""

    def run(self) -> None:
        """Measure, keep and print."""
        from mixerloop.data.batches import fingerprint
        from mixerloop.evaluation.kept_results import NLL as NLL_FILE
        from mixerloop.evaluation.kept_results import write_nll
        from mixerloop.evaluation.nll import measure, summarise

        if self.context is not None and self.context < 1:
            raise ValueError(f"--context must be at least 1, got {self.context}")
        opened = self.open()
        most = num_passes_of(opened.schedule)
        for number in self.passes:
            if not 1 <= number <= most:
                raise ValueError(f"--passes {number}: this schedule makes 1 to {most}")
        data = opened.data(self.data)
        held_out = self._held_out(opened, data)
        line = None if self.json else ProgressLine()
        sums = measure(opened.scorer(), held_out, progress=_watch(line, "all passes"))
        found = summarise(sums, held_out)
        by_passes = {}
        for number in self.passes:
            scorer = opened.scorer(schedule=first_passes(opened.schedule, number))
            part = measure(scorer, held_out, progress=_watch(line, f"{number} passes"))
            by_passes[number] = summarise(part, held_out)
        if line is not None:
            line.close()
        result = opened.heading() | {
            **_nll_json(found),
            "context": held_out.context,
            "warnings": _warnings(found),
            "by_passes": {str(number): _nll_json(one) for number, one in by_passes.items()},
            "provenance": opened.provenance(data=fingerprint(data)),
        }
        if opened.results is not None:
            write_nll(opened.results, result, sums, held_out)
        if self.json:
            print(runs.to_json(result), end="")
            return
        _show_nll(str(self.run_path), notation(opened.schedule), found)
        for number, one in by_passes.items():
            print(f"after {number} of {most} passes: NLL {_interval(one.nll)}")
        for warning in result["warnings"]:
            print(f"warning: {warning}")
        print(opened.where_kept(NLL_FILE))

    def _held_out(self, opened: Opened, data: Path) -> "HeldOut":
        from mixerloop.data.batches import hops_settings
        from mixerloop.data.hops import Hops as HopsTask
        from mixerloop.data.shards import TokenSplit, open_tokenizer
        from mixerloop.evaluation.nll import held_out_hops, held_out_text

        vocab_size = opened.config.model.vocab_size
        if (settings := hops_settings(data)) is not None:
            hops = HopsTask(settings, "held_out")
            check_fits(data, hops.vocab_size, vocab_size)
            if self.context not in (None, hops.context):
                raise ValueError(f"{data}: its sequences have {hops.context} tokens, no other")
            return held_out_hops(hops)
        split = TokenSplit(data, "held_out")
        check_fits(data, split.manifest.vocab_size, vocab_size)
        own = opened.folder / runs.TOKENIZER
        if own.is_file() and runs.sha256(own) != split.manifest.tokenizer_sha256:
            raise ValueError(f"{data}: was made with another tokenizer than the run's")
        configured = None if opened.config.data is None else opened.config.data.context
        context = configured if self.context is None else self.context
        if context is None:
            raise ValueError("this run has no context of its own; give one with --context")
        return held_out_text(split, open_tokenizer(data, split.manifest), context=context)


def _watch(line: ProgressLine | None, what: str) -> Callable[[int, int], None] | None:
    if line is None:
        return None
    return lambda done, total: line.show(f"{what}: {done:,} of {total:,} tokens")


def _nll_json(found: "NLL") -> dict[str, Any]:
    return {
        "nll": found.nll._asdict(),
        "bits_per_byte": None if found.bits_per_byte is None else found.bits_per_byte._asdict(),
        "accuracy": found.accuracy._asdict(),
        "by_position": [one._asdict() | {"nll": one.nll._asdict()} for one in found.by_position],
        "documents": found.documents,
        "tokens": found.tokens,
    }


def _warnings(found: "NLL") -> list[str]:
    from mixerloop.evaluation.comparison import FEW_DOCUMENTS

    if found.documents >= FEW_DOCUMENTS:
        return []
    return [f"the intervals come from {found.documents} documents; do not trust them far"]


def _interval(found: "Estimate") -> str:
    return f"{found.value:.4f} [{found.lower:.4f}, {found.upper:.4f}]"


def _show_nll(run: str, schedule: str, found: "NLL") -> None:
    print(f"{run}, schedule {schedule}: {found.tokens:,} tokens of {found.documents:,} documents")
    print(f"NLL            {_interval(found.nll)} nats per token")
    if found.bits_per_byte is not None:
        print(f"bits per byte  {_interval(found.bits_per_byte)}")
    print(f"most likely    {_interval(found.accuracy)} of the tokens")
    table = table_of("tokens before", "NLL", "95 % interval")
    for first, last, nll in found.by_position:
        place = f"{first:,}" if first == last else f"{first:,} to {last:,}"
        table.add_row(place, f"{nll.value:.4f}", f"{nll.lower:.4f} to {nll.upper:.4f}")
    print_table(table)


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """The options of `mixerloop evaluate`."""

    what: (
        Annotated[HeldOutNLL, tyro.conf.subcommand("nll", description=NLL_HELP)]
        | Annotated[Core, tyro.conf.subcommand("core", description=CORE_HELP)]
        | Annotated[Hops, tyro.conf.subcommand("hops", description=HOPS_HELP)]
        | Annotated[Compare, tyro.conf.subcommand("compare", description=COMPARE_HELP)]
    )

    def run(self) -> None:
        """Measure the one that was asked for."""
        self.what.run()
