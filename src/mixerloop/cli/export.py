"""`mixerloop export`: a run as a folder for `transformers`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mixerloop.files import json_text

HELP = """Write a folder for `transformers`.

A model that was imported from a pretrained folder gets the layout of that folder. Other models get
the names of the released checkpoints.
A mixer, full or ffn loop is written in the authors' format, a model without a loop in that of
flash-linear-attention. Any other schedule gets our own type, mixerloop_schedule.
The folder loads with AutoModelForCausalLM.from_pretrained(DIR) after `import mixerloop.interop.hf`.

examples:
  mixerloop export RUN --to hf --out exported
"""


@dataclass(frozen=True, kw_only=True)
class Export:
    """The options of `mixerloop export`."""

    run_path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="run", metavar="RUN")]
    """A run, or one of its checkpoints."""
    out: Path
    """The folder to make."""
    to: Literal["hf"] = "hf"
    """The format; hf is Hugging Face's transformers."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Write the folder and print its model type, or JSON."""
        from mixerloop.interop.conversion import export_run

        made = export_run(self.run_path, self.out)
        if self.json:
            facts = {
                "folder": str(made.folder),
                "of": str(made.checkpoint),
                "model_type": made.model_type,
            }
            print(json_text(facts), end="")
        else:
            print(
                f"{made.folder}: {made.checkpoint} as transformers reads it, type {made.model_type}"
            )
            if made.is_ours:
                print("in Python: import mixerloop.interop.hf, then AutoModelForCausalLM")
