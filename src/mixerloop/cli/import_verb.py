"""`mixerloop import`: a released checkpoint, or an exported folder, as a run."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mixerloop.files import json_text

HELP = """Make a run of a folder of `transformers`: a released checkpoint, or one we exported.

Known are gated_deltanet (flash-linear-attention's own), mixerloop, fullloop and ffnloop, and the
mixerloop_schedule of our exports.

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
    """Take this instead of the loop the folder names."""
    tokenizer: Path | None = None
    """A SentencePiece model; the folder's tokenizer.model unless you say so."""
    ignore_keys: tuple[str, ...] = ()
    """Keys of config.json that you know to mean nothing for what is computed."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Read, check, write."""
        from mixerloop.interop.conversion import import_run

        imported = import_run(
            self.folder,
            self.out,
            schedule=self.schedule,
            tokenizer=self.tokenizer,
            ignore_keys=self.ignore_keys,
        )
        if self.json:
            print(json_text({**asdict(imported), "run": str(imported.run)}), end="")
        else:
            print(
                f"{imported.run}: {imported.parameters:,} parameters, schedule {imported.schedule}"
            )
