"""`mixerloop law`: what the passes of each loop are worth in parameters."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from mixerloop.files import check_can_hold, json_text
from mixerloop.messages import printable
from mixerloop.progress_line import ProgressLine, counting, to_stderr
from mixerloop.text_tables import print_table, table_of

if TYPE_CHECKING:
    from mixerloop.laws.law_result import LawResult, LoopLaw
    from mixerloop.results import Estimate

HELP = """Fit L = E + A (N_once + r^phi N_rec)^-alpha + B D^-beta to the cells of a study.

phi says what passes are worth: r passes of a loop count as r^phi times the parameters that loop. At
0 further passes are worth nothing; at 1 they are worth as much as parameters. A study needs three
sizes, three token budgets and three seeds of no_loop and of each loop. Read docs/law.md first.

examples:
  mixerloop law runs/scaling
  mixerloop law runs/scaling --out law --json
  mixerloop law runs/two-budgets --floor 1.69
"""
SHOWN_RESIDUALS = 5


@dataclass(frozen=True, kw_only=True)
class Law:
    """The options of `mixerloop law`."""

    study: Annotated[str, tyro.conf.Positional]
    """The folder of a study, or the name of a study in runs/."""
    parts: tuple[str, ...] = ()
    """Parts whose cells are pooled; by default all, which must have the same data."""
    floor: float | None = None
    """E in nats, if it is known; then two token budgets or two sizes are enough."""
    seed: int = 0
    """Seed of the resampling."""
    out: Path | None = None
    """A folder for law.json and for a figure of each loop."""
    overwrite: bool = False
    """Replace files that mixerloop did not write, or that were changed since."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Fit the laws, print tables or JSON, and write the figures."""
        from mixerloop.laws.law_files import write_law
        from mixerloop.laws.study_law import fit_law

        if self.out is not None:
            check_can_hold(self.out)
        line = None if self.json else ProgressLine()
        result = fit_law(
            self.study,
            floor=self.floor,
            parts=self.parts,
            seed=self.seed,
            progress=line and counting(line, "resamples"),
        )
        if line is not None:
            line.close()
        if self.json:
            print(json_text(result.to_json()), end="")
        else:
            _show(result)
        sys.stdout.flush()  # the result is out before the figures are drawn
        if self.out is not None:
            warning = write_law(result, self.out, overwrite=self.overwrite)
            if warning is not None:
                to_stderr(f"{warning}; the same command draws them, given more memory\n")
            if not self.json:
                print(f"kept in {self.out}")


def _show(result: "LawResult") -> None:
    print(printable(result.title))
    table = table_of("loop", "passes", "phi", "95 % interval", "published", "passes count as")
    for law in result.loops:
        most = max(law.passes)
        published = "" if law.published_phi is None else f"{law.published_phi:.2f}"
        table.add_row(
            printable(law.loop),
            ", ".join(map(str, law.passes)),
            f"{law.phi.value:.3f}",
            f"{law.phi.lower:.3f} to {law.phi.upper:.3f}",
            published,
            f"{most}: {most**law.phi.value:.2f} x",
        )
    print_table(table)
    for law in result.loops:
        _show_law(law)
    for remark in result.remarks:
        print(f"remark: {printable(remark)}")
    for loop, reason in result.rejected.items():
        print(f"not fitted: {printable(f'{loop}: {reason}')}")


def _show_law(law: "LoopLaw") -> None:
    over = f"intervals are over {law.phi.over}"
    print(f"\n{printable(law.loop)}, {len(law.cells)} cells: {over}")
    table = table_of("", *law.parameters)
    table.add_row("fit", *(_figure(one.value) for one in law.parameters.values()))
    table.add_row("95 % interval", *map(_interval, law.parameters.values()))
    print_table(table)
    if law.at_bound:
        print(f"open: {', '.join(law.at_bound)} reach the bounds of the fit")
    seeds = "" if law.seed_sd is None else f"; seeds of a cell vary by {law.seed_sd:.4f}"
    print(f"residuals: a run lies {law.run_sd:.4f} nats off the law{seeds}")
    table = table_of("largest", "size", "passes", "tokens", "seeds", "NLL", "law", "NLL - law")
    largest = sorted(law.cells, key=lambda cell: -abs(cell.residual))
    for cell in largest[:SHOWN_RESIDUALS]:
        table.add_row(
            printable(cell.loop),
            printable(cell.size),
            str(cell.passes),
            f"{cell.tokens:,}",
            str(cell.seeds),
            f"{cell.nll:.4f}",
            f"{cell.fitted:.4f}",
            f"{cell.residual:+.4f}",
        )
    print_table(table)
    if law.left_out:
        errors = (
            f"{printable(one.size)} {one.mean_error:+.4f} (rms {one.rms_error:.4f})"
            for one in law.left_out
        )
        print(f"predicted without the size itself, NLL - prediction: {', '.join(errors)}")
    else:
        print("no prediction without a size: three sizes are needed")


def _interval(estimate: "Estimate") -> str:
    if estimate.lower == estimate.upper:
        return ""
    return f"{_figure(estimate.lower)} to {_figure(estimate.upper)}"


def _figure(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.3g}"
