"""`mixerloop export`: a model as others read it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mixerloop import runs
from mixerloop.files import check_is_new, json_text

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
        check_is_new(self.out)
        from mixerloop.interop.folders import export
        from mixerloop.interop.loading import load_any

        loaded = load_any(self.run_path, form="torch")
        tokenizer = loaded.folder / runs.TOKENIZER
        model_type = export(
            loaded.model,
            self.out,
            tokenizer=tokenizer if tokenizer.is_file() else None,
            like=loaded.imported,
        )
        if self.json:
            found = {"folder": str(self.out), "of": str(loaded.folder), "model_type": model_type}
            print(json_text(found), end="")
        else:
            print(f"{self.out}: {loaded.folder} as transformers reads it, type {model_type}")
            print("in Python: import mixerloop.interop.hf, then AutoModelForCausalLM")
