"""`mixerloop transport`: the effect of each mixer pass at the readout."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mixerloop.cli.saving_options import Saving
from mixerloop.cli.transport_tables import show
from mixerloop.config import InitRule
from mixerloop.files import json_text
from mixerloop.measures import measure_of
from mixerloop.progress_line import ProgressLine, counting, to_stderr
from mixerloop.results import encode

HELP = """Restore the context of one pass after another, and measure how the prediction moves.

ITR counts the directions over which the passes of a layer spread. Marginal ITR is the new share of
a pass. Only the gain says whether a pass helps. Read docs/transport.md first.

examples:
  mixerloop transport RUN
  mixerloop transport RUN --control --removal
  mixerloop transport RUN --context 256 --second-draw --json
  mixerloop transport --random 15m --schedule mixer_loop --init released --compute-dtype bfloat16
"""


@dataclass(frozen=True, kw_only=True)
class Transport(Saving):
    """The options of `mixerloop transport`."""

    run_path: Annotated[
        tyro.conf.Positional[Path | None], tyro.conf.arg(name="run", metavar="RUN")
    ] = None
    """A run, or one of its checkpoints; none with --random."""
    random: str | None = None
    """Fresh weights of this preset instead of a run, on token ids drawn at random."""
    init: InitRule = "shared"
    """How --random draws its weights."""
    data: Path | None = None
    """A prepared folder; by default the data that the run was trained on."""
    windows: int = 16
    """Held-out windows to measure."""
    positions: int = 16
    """Positions to measure in the second half of each window."""
    context: int = 128
    """Tokens of a window."""
    control: bool = False
    """Also measure the same model before training: the weights it drew, or took from a parent."""
    removal: bool = False
    """Also measure the cost of leaving out each pass and each ffn, and of swapping their order."""
    second_draw: bool = False
    """Draw other windows, none of which is in the first draw."""
    seed: int = 0
    """Seed of the draw, of the resampling and, with --random, of the weights."""

    def run(self) -> None:
        """Measure transport, print tables or JSON, and draw the figures."""
        from mixerloop.reports.transport_figures import (
            FIGURES,
            check_transport_figures,
            write_transport_figures,
        )
        from mixerloop.transport.measurement import (
            Looking,
            measure_fresh_transport,
            measure_transport,
        )

        if (self.run_path is None) == (self.random is None):
            raise ValueError("name a run, or a preset with --random")
        if self.control and self.random is not None:
            raise ValueError("--random is itself the control; --control goes with a trained run")
        for option, given in (("--data", self.data), ("--damping", self.damping)):
            if self.random is not None and given is not None:
                raise ValueError(f"{option} goes with a run, and not with --random")
        if self.random is None and self.init != "shared":
            raise ValueError("--init goes with --random; a run has its weights")
        looking = Looking(
            windows=self.windows,
            positions=self.positions,
            context=self.context,
            removal=self.removal,
            second_draw=self.second_draw,
            seed=self.seed,
        )
        line = None if self.json else ProgressLine()
        progress = line and counting(line, "windows")
        if self.run_path is not None:
            subject = self.open_run(self.run_path)
            results = subject.results
            if results is not None:
                check_transport_figures(results, control=self.control, overwrite=self.overwrite)
            result = measure_transport(
                subject, looking, data=self.data, control=self.control, progress=progress
            )
        else:
            assert self.random is not None
            results = self.out
            if results is not None:
                check_transport_figures(results, control=False, overwrite=self.overwrite)
            result = measure_fresh_transport(
                self.random,
                looking,
                schedule=self.schedule,
                init=self.init,
                compute_dtype=self.compute_dtype,
                form=self.form,
                device=self.device,
                results=results,
                overwrite=self.overwrite,
                progress=progress,
            )
        if line is not None:
            line.close()
        if self.json:
            print(json_text(encode(result)), end="")
        else:
            show(result)
        sys.stdout.flush()  # the result is out before the figures are drawn
        if results is not None:
            warning = write_transport_figures(result, results, overwrite=self.overwrite)
            if warning is not None:
                to_stderr(f"{warning}; {self._drawing_again()}\n")
            path = results / measure_of(type(result)).file
            kept = f"kept in {path}, pictures in {results / FIGURES}"
        else:
            kept = "not kept; --out keeps the result and its pictures"
        if not self.json:
            print(kept)

    def _drawing_again(self) -> str:
        if self.run_path is None or self.out is not None:
            return "the same command draws them, given more memory"
        return f"draw them, given more memory: mixerloop report {self.run_path} --out report.html"
