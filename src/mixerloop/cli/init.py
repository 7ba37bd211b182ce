"""`mixerloop init`: a run with fresh weights, before any training."""

from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from mixerloop import config
from mixerloop.config import InitRule, check_seed
from mixerloop.files import check_is_new, json_text
from mixerloop.notation import notation
from mixerloop.parsing import one_of

HELP = """Write a run whose weights are freshly drawn: the control for a trained one.

examples:
  mixerloop init nano --out runs/fresh
  mixerloop init 15m --schedule "6x(A2 F)" --tokenizer llama2.model --out runs/fresh-15m
  mixerloop init mine.toml --out runs/mine
"""


@dataclass(frozen=True, kw_only=True)
class Init:
    """The options of `mixerloop init`."""

    size: tyro.conf.Positional[str]
    """A preset such as nano or 15m, or a config file ending in .toml."""
    out: Path
    """The run to make."""
    schedule: str | None = None
    """Notation such as 6x(A4 F), or a named loop; the size's own is mixer_loop."""
    init: str = "shared"
    """shared: one draw for every schedule; released: as in the authors' code."""
    tokenizer: Path | None = None
    """A SentencePiece model to go with the weights."""
    seed: int = 1337
    """Seed of the weights."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Draw, save, and say what comes next."""
        run_config = config.preset_or_file(self.size)
        if self.schedule is not None:
            model_config = replace(run_config.model, schedule=self.schedule)
            run_config = replace(run_config, model=model_config)
        rule = one_of(InitRule, self.init, "init rule")
        check_seed(self.seed)

        from mixerloop.data.tokenizer import Tokenizer
        from mixerloop.model.checkpoint import save_run
        from mixerloop.model.initialization import fresh_model

        tokenizer = None if self.tokenizer is None else Tokenizer(self.tokenizer)
        if tokenizer is not None and tokenizer.vocab_size > run_config.model.vocab_size:
            raise ValueError(
                f"{self.tokenizer}: {tokenizer.vocab_size:,} tokens do not fit the vocabulary "
                f"of {run_config.model.vocab_size:,} of {self.size}"
            )
        check_is_new(self.out)
        model = fresh_model(run_config.model, seed=self.seed, rule=rule)
        facts = {"seed": self.seed, "init": rule, "forms": model.forms()}
        save_run(self.out, model, run_config, tokenizer=self.tokenizer, facts=facts)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        if self.json:
            print(json_text({"run": str(self.out), "parameters": parameters, **facts}), end="")
        else:
            prompt = "--prompt-tokens 1 2 3" if tokenizer is None else '--prompt "Once"'
            schedule = notation(run_config.model.occurrences())
            print(f"{self.out}: {parameters:,} fresh parameters, schedule {schedule}")
            print(f"next: mixerloop generate {self.out} {prompt}")
