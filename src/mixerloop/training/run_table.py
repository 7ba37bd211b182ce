"""The table that `mixerloop runs` prints."""

import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mixerloop.messages import printable
from mixerloop.notation import shortened
from mixerloop.progress_line import duration
from mixerloop.training.status import Status


def runs_text(runs: Sequence[Status]) -> str:
    """A row for each run, what is damaged, and the command that resumes the first stopped run."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("state")
    table.add_column("schedule", overflow="fold")
    for title in ("step", "of", "loss", "held-out", "tokens/s", "time"):
        table.add_column(title, justify="right")
    for run in runs:
        table.add_row(
            *(escape(run.run), run.state),
            escape(shortened(run.schedule or "", most=60)),
            *(_number(run.step, ","), _number(run.total_steps, ",")),
            *(_number(run.loss, ".4f"), _number(run.held_out_nll, ".4f")),
            _number(run.tokens_per_second, ",.0f"),
            "" if run.seconds is None else duration(run.seconds),
        )
    console = Console()
    with console.capture() as captured:
        console.print(table)
    text = captured.get()
    text += "".join(f"damaged: {printable(run.problem)}\n" for run in runs if run.problem)
    stopped = next((run for run in runs if run.state == "stopped"), None)
    if stopped is not None:
        text += f"go on: mixerloop train --resume {shlex.quote(stopped.run)}\n"
    return text.removesuffix("\n")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
