"""`mixerloop train`: train a model, or resume a run."""

import os
import re
import shlex
import signal
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.cli.overrides import Overrides, given
from mixerloop.files import json_text
from mixerloop.history import RESTORED
from mixerloop.messages import printable, shell_word
from mixerloop.progress_line import to_stderr

if TYPE_CHECKING:
    from mixerloop.training.metrics import Metrics
    from mixerloop.training.parent import Parent
    from mixerloop.training.trainer import Outcome

HELP = """Train a model from a config, or resume a run that was stopped.

Every key of the config is an option too. Ctrl-C saves a checkpoint and prints how to resume.

examples:
  mixerloop train nano-hops --schedule full_loop
  mixerloop train nano-stdlib --train.steps 200 --out runs/short
  mixerloop train mine.toml
  mixerloop train --resume runs/short
  mixerloop train nano-stdlib --from runs/short --schedule "2x(A F) 2x(A4 F)"
  torchrun --nproc-per-node 8 -m mixerloop train 15m-climbmix
"""
PROMPT_TOKENS, PROMPT_WORDS = 16, 2


@dataclass(frozen=True, kw_only=True)
class Train:
    """The options of `mixerloop train`."""

    config: tyro.conf.Positional[str | None] = None
    """A config of mixerloop configs by its name, or a file of yours ending in .toml."""
    schedule: str | None = None
    """Short for --model.schedule; the schedule becomes part of the run folder's name."""
    parent: Annotated[Path | None, tyro.conf.arg(name="from", metavar="RUN")] = None
    """Start from the model and weights of a run, a checkpoint or an exported folder."""
    out: Path | None = None
    """The run to make; by default runs/NAME, and runs/NAME-SCHEDULE with --schedule."""
    resume: Path | None = None
    """The run to resume."""
    until: int | None = None
    """Save and stop at this step; --resume trains the rest of the budget."""
    json: bool = False
    """Print JSON for programs, and no progress."""
    overrides: Overrides = field(default_factory=Overrides)

    def run(self) -> None:
        """Train or resume, print the outcome, and exit with an error if a signal stopped it."""
        overrides = self._tables()
        if self.config is None and self.resume is None:
            raise ValueError("name a config to train, or a run to go on with: --resume RUN")
        from mixerloop.training.display import show_training

        display = None if self.json else show_training
        if self.resume is not None:
            if self.out is not None:
                raise ValueError("--resume goes on in the run's own folder; leave --out out")
            if self.parent is not None:
                raise ValueError("--resume goes on from the run's own weights; leave --from out")
            from mixerloop.training.sessions import resume

            trained = resume(
                self.resume,
                config_file=self.config,
                overrides=overrides,
                until=self.until,
                display=display,
            )
        else:
            assert self.config is not None
            parent = None if self.parent is None else _opened(self.parent)
            base = None if parent is None else parent.model
            config = configs.load(self.config, overrides, base=base)
            from mixerloop.training.sessions import train

            out = self._default_run(Path(self.config)) if self.out is None else self.out
            trained = train(config, out, parent=parent, until=self.until, display=display)
        if trained.outcome.finished and trained.last is None:  # no display was made for such a run
            for name in trained.restored:
                to_stderr(f"{trained.run / name}: {RESTORED} {trained.outcome.checkpoint}\n")
        if trained.is_first_rank:
            _say(trained.run, trained.outcome, trained.last, as_json=self.json)
        if trained.outcome.stopped_by is not None and not trained.outcome.finished:
            sys.exit(128 + trained.outcome.stopped_by)

    def _tables(self) -> configs.Tables:
        """The keys that options set, by section."""
        tables = given(self.overrides)
        if self.schedule is None:
            return tables
        model = tables.setdefault("model", {})
        if "schedule" in model:
            raise ValueError("--schedule is short for --model.schedule; give one of them")
        model["schedule"] = self.schedule
        return tables

    def _default_run(self, config: Path) -> Path:
        if self.schedule is None:
            return runs.RUNS / config.stem
        suffix = re.sub(r"\W+", "_", self.schedule).strip("_")  # notation has spaces and brackets
        return runs.RUNS / f"{config.stem}-{suffix}"


def _opened(parent: Path) -> "Parent":
    from mixerloop.interop.parents import open_parent

    return open_parent(parent)


def _say(run: Path, outcome: "Outcome", last: "Metrics | None", *, as_json: bool) -> None:
    name = printable(str(run))
    if as_json:
        facts = {
            "run": str(run),
            "step": outcome.step,
            "finished": outcome.finished,
            "checkpoint": str(outcome.checkpoint),
            "last": None if last is None else asdict(last),
        }
        print(json_text(facts), end="")
    elif not outcome.finished:
        by = "" if outcome.stopped_by is None else f" by {signal.Signals(outcome.stopped_by).name}"
        print(f"{name}: stopped{by} at step {outcome.step:,}, which is saved")
        print(f"go on: {_command()} train --resume {shell_word(run)}")
    elif last is None:
        print(f"{name}: was finished already, at step {outcome.step:,}")
    else:
        print(
            f"{name}: {outcome.step:,} steps, {last.tokens:,} tokens, loss {last.loss:.4f}, "
            f"held-out NLL {last.held_out_nll:.4f}"
        )
        print(f"next: mixerloop generate {shell_word(run)} {_prompt(outcome.checkpoint)}")


def _prompt(checkpoint: Path) -> str:
    """A prompt for the model of a checkpoint: the first words of its held-out text, or tokens."""
    from mixerloop.data.shards import TokenSplit
    from mixerloop.data.tokenizer_files import tokenizer_in

    tokenizer, config = tokenizer_in(checkpoint), configs.load(checkpoint / runs.CONFIG)
    if tokenizer is None or config.data is None:
        return "--prompt-tokens 1 2 3"
    tokens = TokenSplit(Path(config.data.path), "held_out")
    text = tokenizer.decode(tokens.read(0, min(PROMPT_TOKENS, len(tokens))).tolist())
    words = [word for word in text.split() if word.isprintable() and not word.startswith("-")]
    return f"--prompt {shlex.quote(' '.join(words[:PROMPT_WORDS]) or 'The')}"


def _command() -> str:
    """The command to resume with: `mixerloop`, or `torchrun` with as many ranks as now."""
    local_ranks = os.environ.get("LOCAL_WORLD_SIZE")
    if local_ranks is None:
        return "mixerloop"
    return f"torchrun --nproc-per-node {local_ranks} -m mixerloop"
