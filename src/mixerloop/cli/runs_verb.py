"""`mixerloop runs`: a list of runs with their state and their last metrics."""

from dataclasses import asdict, dataclass
from pathlib import Path

import tyro

from mixerloop import runs
from mixerloop.files import json_text

HELP = """List runs with their state and their last metrics.

examples:
  mixerloop runs
  mixerloop runs elsewhere/runs --json
"""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The options of `mixerloop runs`."""

    folder: tyro.conf.Positional[Path] = runs.RUNS
    """The folder to search for runs."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Print a table of the runs, or JSON."""
        from mixerloop.training.run_table import runs_text
        from mixerloop.training.status import list_runs

        listed = list_runs(self.folder)
        if self.json:
            print(json_text([asdict(run) for run in listed]), end="")
        elif listed:
            print(runs_text(listed))
        else:
            print(f"{self.folder}: no runs in here; make one with mixerloop train nano-hops")
