"""`init_run`: a run with fresh weights, the control for a trained run."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mixerloop import config
from mixerloop.config import Form, InitRule, check_seed
from mixerloop.data.tokenizer_files import open_tokenizer
from mixerloop.files import check_is_new
from mixerloop.model.checkpoint import NO_TOKENIZER, save_run
from mixerloop.model.initialization import fresh_model
from mixerloop.notation import notation
from mixerloop.ops.caller_modes import torch_defaults
from mixerloop.parsing import checked, one_of


@dataclass(frozen=True, kw_only=True)
class FreshRun:
    """Facts of a run that `init_run` has made."""

    run: Path
    parameters: int
    schedule: str
    seed: int
    init: InitRule
    form: Form
    has_tokenizer: bool

    def to_json(self) -> dict[str, Any]:
        """The object that `mixerloop init --json` prints."""
        return {
            "run": str(self.run),
            "parameters": self.parameters,
            "seed": self.seed,
            "init": self.init,
            "form": self.form,
        }


@checked
@torch_defaults()
def init_run(
    size: str,
    out: Path | str,
    *,
    schedule: str | None = None,
    init: InitRule = "shared",
    tokenizer: Path | str | None = None,
    seed: int = 1337,
) -> FreshRun:
    """Draw fresh weights for a preset or a config, and save them as a run."""
    out = Path(out)
    run_config = config.preset_or_file(size)
    if schedule is not None:
        run_config = replace(run_config, model=replace(run_config.model, schedule=schedule))
    rule = one_of(InitRule, init, "init rule")
    check_seed(seed)
    opened = None if tokenizer is None else open_tokenizer(tokenizer)
    vocab_size = run_config.model.vocab_size
    if opened is not None and opened.vocab_size > vocab_size:
        raise ValueError(
            f"{tokenizer}: {opened.vocab_size:,} tokens do not fit the vocabulary of "
            f"{vocab_size:,} of {size}"
        )
    check_is_new(out)
    model = fresh_model(run_config.model, seed=seed, rule=rule)
    facts = {"seed": seed, "init": rule, "forms": model.forms()}
    files = NO_TOKENIZER if opened is None else opened.files
    save_run(out, model, run_config, tokenizer=files, facts=facts)
    return FreshRun(
        run=out,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        schedule=notation(run_config.model.occurrences()),
        seed=seed,
        init=rule,
        form=model.form,
        has_tokenizer=opened is not None,
    )
