"""`mixerloop runs`: which runs there are, in what state, with their last figures."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from mixerloop.files import json_text
from mixerloop.notation import shortened
from mixerloop.progress_line import duration

if TYPE_CHECKING:
    from mixerloop.training.status import Status

HELP = """List runs with their state and last figures.

examples:
  mixerloop runs
  mixerloop runs elsewhere/runs --json
"""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The options of `mixerloop runs`."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """Where to look."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Look and list."""
        from mixerloop.training.status import find_runs, status

        if not self.folder.is_dir():
            raise ValueError(f"{self.folder}: there is no such folder")
        found = [status(run) for run in find_runs(self.folder)]
        if self.json:
            print(json_text([asdict(one) for one in found]), end="")
        elif found:
            show(found)
        else:
            print(f"{self.folder}: no runs in here; make one with mixerloop train CONFIG.toml")


def show(found: "list[Status]") -> None:
    """The list for people."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("state")
    table.add_column("schedule", overflow="fold")
    for title in ("step", "of", "loss", "held-out", "tokens/s", "time"):
        table.add_column(title, justify="right")
    for one in found:
        table.add_row(
            *(escape(one.run), one.state),
            escape(shortened(one.schedule or one.problem or "", most=60)),
            *(_number(one.step, ","), _number(one.total_steps, ",")),
            *(_number(one.loss, ".4f"), _number(one.held_out_nll, ".4f")),
            _number(one.tokens_per_second, ",.0f"),
            "" if one.seconds is None else duration(one.seconds),
        )
    Console().print(table)
    for one in found:
        if one.state == "stopped":
            print(f"go on: mixerloop train --resume {shlex.quote(one.run)}")
            break


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
