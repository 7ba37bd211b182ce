"""`mixerloop train`: train a model, or go on training one."""

import os
import shlex
import signal
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from mixerloop import config as configs
from mixerloop import machine, runs
from mixerloop.cli.overrides import Overrides, given
from mixerloop.cli.progress_line import ProgressLine, duration
from mixerloop.config import RunConfig

if TYPE_CHECKING:
    from mixerloop.training.metrics import Metrics, Timing, Watcher
    from mixerloop.training.ranks import Ranks
    from mixerloop.training.trainer import Outcome, Trainer

HELP = """Train a model as a config says, or go on where a run was stopped.

Every key of the config is an option too. Ctrl-C saves a checkpoint and says how to go on.

examples:
  mixerloop train configs/nano-stdlib-mixer_loop.toml
  mixerloop train configs/nano-stdlib-mixer_loop.toml --train.steps 200 --out runs/short
  mixerloop train --resume runs/short
  torchrun --nproc-per-node 8 -m mixerloop train configs/15m-climbmix-mixer_loop.toml
"""
RUNS = Path("runs")


@dataclass(frozen=True, kw_only=True)
class Train:
    """The options of `mixerloop train`."""

    config: tyro.conf.Positional[Path | None] = None
    """A config file ending in .toml."""
    out: Path | None = None
    """The run to make; runs/NAME for a config NAME.toml unless you say so."""
    resume: Path | None = None
    """The run to go on with."""
    until: int | None = None
    """Stop at this step, saved, and leave the rest of the budget to --resume."""
    json: bool = False
    """Print JSON for programs, and no progress."""
    overrides: Overrides = field(default_factory=Overrides)

    def run(self) -> None:
        """Train, and say how it ended."""
        if self.until is not None and self.until < 1:
            raise ValueError(f"--until must be at least 1, got {self.until}")
        run_config = self._config(given(self.overrides))

        from mixerloop.training.ranks import joined

        machine.keep_freed_memory()
        _, train = run_config.for_training()
        with joined(train.device) as ranks:
            run, run_config = self._run_folder(run_config, ranks)
            ranks.wait()  # the first rank may have made it just now
            if not ranks.is_first:
                outcome, _ = _train(run, run_config, ranks, until=self.until, show=False)
            else:
                with runs.locked(run):
                    outcome, last = _train(
                        run, run_config, ranks, until=self.until, show=not self.json
                    )
                _say(run, outcome, last, as_json=self.json)
        if outcome.stopped_by is not None:
            sys.exit(128 + outcome.stopped_by)

    def _config(self, overrides: configs.Tables) -> RunConfig:
        if self.resume is None:
            if self.config is None:
                raise ValueError("name a config to train, or a run to go on with: --resume RUN")
            return configs.load(self.config, overrides)
        if self.out is not None:
            raise ValueError("--resume goes on in the run's own folder; leave --out out")
        if (self.resume / runs.CONTENTS).exists():
            raise ValueError(f"{self.resume}: a checkpoint; name the run it belongs to")
        if not (self.resume / runs.CONFIG).is_file():
            raise ValueError(f"{self.resume}: there is no such run")
        from mixerloop.training.run_folder import resumed_config

        return resumed_config(self.resume, config_file=self.config, overrides=overrides)

    def _run_folder(self, run_config: RunConfig, ranks: "Ranks") -> tuple[Path, RunConfig]:
        if self.resume is not None:
            return self.resume, run_config
        assert self.config is not None
        from mixerloop.training.run_folder import begin

        run = RUNS / self.config.stem if self.out is None else self.out
        return run, begin(run, run_config, ranks=ranks)


def _train(
    run: Path, run_config: RunConfig, ranks: "Ranks", *, until: int | None, show: bool
) -> tuple["Outcome", "Metrics | None"]:
    from mixerloop.training.trainer import Trainer

    if ranks.is_first:
        runs.remove_leftovers(run)
        runs.remove_leftovers(run / runs.CHECKPOINTS)
    trainer = Trainer(run, run_config, ranks=ranks)
    if not ranks.is_first or trainer.finished:
        return trainer.train(until=until), None
    watchers, line = _watchers(run, trainer, show=show)
    try:
        outcome = trainer.train(watchers, until=until)
    finally:
        for watcher in watchers:
            watcher.close()
    return outcome, line.last


def _watchers(run: Path, trainer: "Trainer", *, show: bool) -> "tuple[list[Watcher], Line]":
    from mixerloop.training.metrics import JsonLines, TensorBoard, WeightsAndBiases
    from mixerloop.training.run_folder import note_session, provenance_of

    train = trainer.train_config
    line = Line(trainer.budget.steps, show=show)
    watchers: list[Watcher] = [line, JsonLines(run, start=trainer.step)]
    if train.tensorboard:
        watchers.append(TensorBoard(run, start=trainer.step))
    if train.wandb is not None:
        identity = str(provenance_of(run)["id"])
        facts = asdict(trainer.config)
        watchers.append(WeightsAndBiases(run, project=train.wandb, identity=identity, config=facts))
    note_session(run, trainer.config, ranks=trainer.ranks, step=trainer.step)
    of = ""
    if (steps := trainer.budget.steps) is not None:
        warmup = trainer.budget.warmup_steps(train.warmup_steps, steps)
        of = f" of {steps:,}, the first {warmup:,.0f} a warm-up"
    line.say(
        f"{run}: {trainer.num_parameters:,} parameters, {trainer.model.implementation} rule in "
        f"{train.compute_dtype}, {trainer.tokens_per_step:,} tokens a step, from step "
        f"{trainer.step:,}{of}"
    )
    return watchers, line


class Line:
    """The progress line as a watcher; it remembers the last step for the last words."""

    def __init__(self, total_steps: int | None, *, show: bool) -> None:
        self._total = f"/{total_steps:,}" if total_steps else ""
        self._line = ProgressLine() if show else None
        self._held_out = ""
        self.last: Metrics | None = None

    def say(self, text: str) -> None:
        """A line before the first step."""
        if self._line is not None:
            self._line.say(text)

    def step(self, metrics: "Metrics", timing: "Timing") -> None:
        """Write the line."""
        self.last = metrics
        if self._line is None:
            return
        if metrics.held_out_nll is not None:
            self._held_out = f"  held-out {metrics.held_out_nll:.4f}"
        self._line.show(
            f"step {metrics.step:,}{self._total}  loss {metrics.loss:.4f}{self._held_out}  "
            f"{timing.tokens_per_second:,.0f} tokens/s  {timing.gemm_share:.0%} of GEMM  "
            f"{duration(timing.seconds_left)} left"
        )

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Leave the line."""
        if self._line is not None:
            self._line.close()


def _say(run: Path, outcome: "Outcome", last: "Metrics | None", *, as_json: bool) -> None:
    if as_json:
        facts = {
            "run": str(run),
            "step": outcome.step,
            "finished": outcome.finished,
            "checkpoint": str(outcome.checkpoint),
            "last": None if last is None else asdict(last),
        }
        print(runs.to_json(facts), end="")
    elif not outcome.finished:
        by = "" if outcome.stopped_by is None else f" by {signal.Signals(outcome.stopped_by).name}"
        print(f"{run}: stopped{by} at step {outcome.step:,}, which is saved")
        print(f"go on: {_command()} train --resume {shlex.quote(str(run))}")
    elif last is None:
        print(f"{run}: was finished already, at step {outcome.step:,}")
    else:
        print(
            f"{run}: {outcome.step:,} steps, {last.tokens:,} tokens, loss {last.loss:.4f}, "
            f"held-out NLL {last.held_out_nll:.4f}"
        )
        prompt = '--prompt "def"' if (outcome.checkpoint / runs.TOKENIZER).exists() else ""
        print(
            f"next: mixerloop generate {shlex.quote(str(run))} {prompt or '--prompt-tokens 1 2 3'}"
        )


def _command() -> str:
    """How this process was started, as far as resuming goes."""
    local_ranks = os.environ.get("LOCAL_WORLD_SIZE")
    if local_ranks is None:
        return "mixerloop"
    return f"torchrun --nproc-per-node {local_ranks} -m mixerloop"
