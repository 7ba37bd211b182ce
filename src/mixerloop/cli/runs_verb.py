"""`mixerloop runs`: which runs there are, in what state, with their last figures."""

from dataclasses import asdict, dataclass
from pathlib import Path

import tyro

from mixerloop import runs
from mixerloop.files import json_text

HELP = """List runs with their state and last figures.

examples:
  mixerloop runs
  mixerloop runs elsewhere/runs --json
"""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The options of `mixerloop runs`."""

    folder: tyro.conf.Positional[Path] = runs.RUNS
    """Where to look."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Look and list."""
        from mixerloop.training.run_table import runs_text
        from mixerloop.training.status import list_runs

        found = list_runs(self.folder)
        if self.json:
            print(json_text([asdict(run) for run in found]), end="")
        elif found:
            print(runs_text(found))
        else:
            print(f"{self.folder}: no runs in here; make one with mixerloop train CONFIG.toml")
