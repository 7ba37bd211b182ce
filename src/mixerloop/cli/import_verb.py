"""`mixerloop import`: a released checkpoint, or an exported folder, as a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mixerloop import runs
from mixerloop.config import check_fits
from mixerloop.files import check_is_new, json_text
from mixerloop.notation import notation

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
        check_is_new(self.out)
        from mixerloop.data.tokenizer import Tokenizer
        from mixerloop.interop.folders import CONFIG, exported_config, is_exported, read_exported
        from mixerloop.model.checkpoint import save_run

        if not is_exported(self.folder):
            raise ValueError(f"{self.folder}: no {CONFIG}, so not a folder of transformers")
        model, config = read_exported(self.folder, schedule=self.schedule, ignore=self.ignore_keys)
        own = self.folder / runs.TOKENIZER
        tokenizer = self.tokenizer or (own if own.is_file() else None)
        if tokenizer is not None:
            check_fits(tokenizer, Tokenizer(tokenizer).vocab_size, config.model.vocab_size)
        facts = {"seed": None, "imported": str(self.folder), "forms": model.forms()}
        imported = exported_config(self.folder)
        if self.tokenizer is not None:  # the ids of special tokens are those of another tokenizer
            imported |= dict.fromkeys(("bos_token_id", "eos_token_id"))
        save_run(self.out, model, config, tokenizer=tokenizer, imported=imported, facts=facts)
        schedule = notation(config.model.occurrences())
        parameters = sum(parameter.numel() for parameter in model.parameters())
        if self.json:
            found = {"run": str(self.out), "parameters": parameters, "schedule": schedule}
            print(json_text(found), end="")
        else:
            print(f"{self.out}: {parameters:,} parameters, schedule {schedule}")
