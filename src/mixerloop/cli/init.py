"""`mixerloop init`: a run with fresh weights, before any training."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from mixerloop.config import InitRule
from mixerloop.files import json_text
from mixerloop.messages import shell_word
from mixerloop.parsing import one_of

HELP = """Write a run with fresh random weights: the control for a trained run.

examples:
  mixerloop init nano --out runs/fresh
  mixerloop init 15m --schedule "6x(A2 F)" --tokenizer llama2.model --out runs/fresh-15m
  mixerloop init mine.toml --out runs/mine
"""


@dataclass(frozen=True, kw_only=True)
class Init:
    """The options of `mixerloop init`."""

    size: tyro.conf.Positional[str]
    """A preset such as nano or 15m, a config of mixerloop configs, or a file ending in .toml."""
    out: Path
    """The run to make."""
    schedule: str | None = None
    """Notation such as 6x(A4 F), or a named loop; presets use mixer_loop by default."""
    init: str = "shared"
    """shared: one draw for every schedule; released: as in the authors' code."""
    tokenizer: Path | None = None
    """A tokenizer to store beside the weights: a file (.model, .json) or a folder with one."""
    seed: int = 1337
    """Random seed of the weights."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Draw and save the weights, and print the next command, or JSON."""
        from mixerloop.training.fresh_run import init_run

        fresh = init_run(
            self.size,
            self.out,
            schedule=self.schedule,
            init=one_of(InitRule, self.init, "init rule"),
            tokenizer=self.tokenizer,
            seed=self.seed,
        )
        if self.json:
            print(json_text(fresh.to_json()), end="")
            return
        prompt = '--prompt "Once"' if fresh.has_tokenizer else "--prompt-tokens 1 2 3"
        print(f"{fresh.run}: {fresh.parameters:,} fresh parameters, schedule {fresh.schedule}")
        print(f"next: mixerloop generate {shell_word(fresh.run)} {prompt}")
