"""`mixerloop init`: a run with fresh weights, before any training."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tyro

from mixerloop import config, runs
from mixerloop.config import RunConfig

HELP = """Write a run whose weights are freshly drawn: the control for a trained one.

examples:
  mixerloop init nano --out runs/fresh
  mixerloop init 15m --schedule "6x(A2 F)" --tokenizer llama2.model --out runs/fresh-15m
"""


@dataclass(frozen=True, kw_only=True)
class Init:
    """The options of `mixerloop init`."""

    size: tyro.conf.Positional[str]
    """nano, 15m, 42m or 110m."""
    out: Path
    """The run to make."""
    schedule: str = "mixer_loop"
    """Notation such as 6x(A4 F), or a named loop."""
    init: Literal["shared", "released"] = "shared"
    """One draw for every schedule, or the released rule that shrinks output projections."""
    tokenizer: Path | None = None
    """A SentencePiece model to go with the weights."""
    seed: int = 1337
    """Seed of the weights."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Draw, save, and say what comes next."""
        model_config = replace(config.preset(self.size), schedule=self.schedule)

        from mixerloop.data.tokenizer import Tokenizer
        from mixerloop.model.checkpoint import save_model
        from mixerloop.model.initialization import fresh_model

        tokenizer = None if self.tokenizer is None else Tokenizer(self.tokenizer)
        if tokenizer is not None and tokenizer.vocab_size > model_config.vocab_size:
            raise ValueError(
                f"{self.tokenizer}: {tokenizer.vocab_size:,} tokens do not fit the vocabulary "
                f"of {model_config.vocab_size:,} of {self.size}"
            )
        run_config = RunConfig(model=model_config)
        with runs.new_folder(self.out) as folder:
            model = fresh_model(model_config, seed=self.seed, rule=self.init)
            checkpoint = runs.checkpoint_folder(folder, step=0)
            checkpoint.mkdir(parents=True)
            save_model(checkpoint, model, run_config)
            if self.tokenizer is not None:
                (checkpoint / runs.TOKENIZER).write_bytes(self.tokenizer.read_bytes())
            runs.seal(checkpoint)
            runs.write_file(folder / runs.CONFIG, config.dump(run_config))
            facts = {"seed": self.seed, "init": self.init, "implementation": model.implementation}
            runs.write_file(folder / runs.PROVENANCE, runs.to_json(runs.provenance(**facts)))
        parameters = sum(parameter.numel() for parameter in model.parameters())
        if self.json:
            print(runs.to_json({"run": str(self.out), "parameters": parameters, **facts}), end="")
        else:
            print(f"{self.out}: {parameters:,} fresh parameters, schedule {self.schedule}")
            print(f"next: mixerloop generate {self.out} --prompt-tokens 1 2 3")
