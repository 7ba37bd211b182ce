"""`mixerloop export`: a model as others read it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mixerloop.files import json_text

HELP = """Write a folder for `transformers`, with the names of the released checkpoints.

A mixer, full or ffn loop is written as the authors write theirs, a model without a loop as
flash-linear-attention does. Any other schedule gets our own type, mixerloop_schedule.
It loads with AutoModelForCausalLM.from_pretrained(DIR) after `import mixerloop.interop.hf`.

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
    """Hugging Face's transformers."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Load, rename, write."""
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
            print("in Python: import mixerloop.interop.hf, then AutoModelForCausalLM")
