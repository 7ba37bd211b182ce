"""`mixerloop import`: a released checkpoint, or an exported folder, as a run."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mixerloop.files import json_text

HELP = """Make a run from a folder of `transformers`: a released checkpoint, or our own export.

The known model types are gated_deltanet (of flash-linear-attention), mixerloop, fullloop and
ffnloop, and mixerloop_schedule (of our exports).

examples:
  mixerloop import mixerloop-15m --out runs/released-15m
  mixerloop import other-15m --schedule "mixer_loop(4)" --ignore-keys their_key --out runs/other
"""


@dataclass(frozen=True, kw_only=True)
class Import:
    """The options of `mixerloop import`."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """A folder with config.json and model.safetensors."""
    out: Path
    """The run to make."""
    schedule: str | None = None
    """Use this schedule instead of the loop that the folder names."""
    tokenizer: Path | None = None
    """A SentencePiece model; by default the folder's tokenizer.model."""
    ignore_keys: tuple[str, ...] = ()
    """Keys of config.json that you know to have no effect on the model."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Make the run and print its schedule, or JSON."""
        from mixerloop.interop.conversion import import_run

        made = import_run(
            self.folder,
            self.out,
            schedule=self.schedule,
            tokenizer=self.tokenizer,
            ignore_keys=self.ignore_keys,
        )
        if self.json:
            print(json_text({**asdict(made), "run": str(made.run)}), end="")
        else:
            print(f"{made.run}: {made.parameters:,} parameters, schedule {made.schedule}")
