"""The trainer: makes steps until the budget is spent or a signal asks it to stop.

A step depends on the seed, its number and the state before it (weights and optimizer), and on
nothing else. A run that was killed and resumed is therefore the same run, bit for bit.
"""

import math
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from mixerloop import runs
from mixerloop.config import check_same_run
from mixerloop.data.batches import Batch
from mixerloop.files import check_space
from mixerloop.model.checkpoint import load_model
from mixerloop.parent_record import read_parent
from mixerloop.training import checkpoints
from mixerloop.training.core_share import CoreShare, core_share
from mixerloop.training.freezing import num_trained, train_only
from mixerloop.training.loss import Loss
from mixerloop.training.lr_curve import rate_of_step
from mixerloop.training.metrics import Metrics, Timing, Watcher
from mixerloop.training.opened import Opened
from mixerloop.training.optimizer import make_optimizer
from mixerloop.training.parallel import ParallelLoss
from mixerloop.training.place import RunPlace
from mixerloop.training.position import Position
from mixerloop.training.sealing import SealedData
from mixerloop.training.seeds import own_random_state, step_seed
from mixerloop.training.signals import Signals, signals
from mixerloop.training.speed import Clock, Speed
from mixerloop.training.step import Computation, StepStopped, accumulate, clip, validation_nll

ENDLESS = 2**62


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Where and why a session ended."""

    step: int
    finished: bool
    stopped_by: int | None
    """The first signal of the session, even if it came with the last step; None if none came."""
    checkpoint: Path


class Update(NamedTuple):
    """What one update computed."""

    loss: float
    parts: dict[str, float]
    grad_norm: float
    learning_rate: float


class Trainer:
    """A run loaded from its newest checkpoint, ready for more steps."""

    def __init__(self, run: Path, opened: Opened) -> None:
        self.opened, self.ranks = opened, opened.ranks
        recipe = opened.recipe
        self.config, self.train_config, self.depths = recipe.config, recipe.train, recipe.depths
        self.budget, self.batches = opened.budget, opened.batches
        self.vocabulary_files = opened.prepared.vocabulary_files()
        """Read now: the data folder may be gone when a tokenizer is saved."""

        train, ranks = self.train_config, self.ranks
        folder = runs.find_checkpoint(run)
        self.model, saved = load_model(folder, form=train.form)
        check_same_run(saved, self.config, where=str(folder))  # config.toml can be edited
        self.parent = read_parent(folder)
        self.num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        train_only(self.model, recipe.weights)
        self.num_trained = num_trained(self.model)
        if train.compile:
            for layer in self.model.layers:
                layer.compile()
        self.loss = ParallelLoss(
            Loss(self.model, recompute=train.recompute),
            ranks=ranks,
            parallel=train.parallel,
            may_skip=bool(recipe.weights.late),
            settle={"objective": recipe.objective, "depth": recipe.depths.depths[-1]},
        )
        rates = {"peak_lr": train.peak_lr, "embedding_lr": train.embedding_lr}
        self.optimizer = make_optimizer(self.model, weight_decay=train.weight_decay, **rates)
        position = checkpoints.restore(folder, self.model, self.optimizer, late=recipe.weights.late)
        if folder != runs.checkpoint_folder(run, position.step) or position.seed != train.seed:
            raise ValueError(f"{folder}: its position is not that of this run at this step")
        self.place = RunPlace(run, folder, is_first=ranks.is_first)
        self.step, self.finished = position.step, position.finished
        self.began_unchecked = not position.data_checked
        self.data: SealedData | None = None
        """The check of the data in this session; None before the first step."""
        self.restored: list[str] = []
        """Files of the history that were not as the checkpoint has them, and were restored."""
        self.clock, self.spent = Clock(position.seconds), position.seconds
        self.depths.starts[:] = position.depth_starts or self.depths.starts
        self.drawn = self.depths.counts(0, self.step)
        """How many draws have had each depth."""
        self.computation = Computation(
            micro_batch=train.micro_batch or train.global_batch // ranks.num_ranks,
            compute_dtype=train.product_dtype,
            ranks=ranks,
            objective=recipe.objective,
            depths=self.depths,
        )

    @property
    def run(self) -> Path:
        """The folder of the run, where it is now."""
        return self.place.run

    @property
    def newest(self) -> Path:
        """The newest checkpoint."""
        return self.place.newest

    def train(self, watchers: Sequence[Watcher] = (), *, until: int | None = None) -> Outcome:
        """Make steps to the end of the budget or to step `until`.

        The first rank passes its watchers, which receive the metrics of every step.
        """
        with signals() as received, own_random_state():
            if not self.finished and (until is None or self.step < until):
                self._train(watchers, received, until)
            elif self.began_unchecked:  # the run was finished before its data was checked
                with closing(self._sealed_data()) as self.data:
                    self.data.require(received, newest=self.newest)
        return Outcome(
            step=self.step,
            finished=self.finished,
            stopped_by=received.first,
            checkpoint=self.newest,
        )

    def _sealed_data(self) -> SealedData:
        return SealedData(self.opened.prepared, self.ranks, began_unchecked=self.began_unchecked)

    def _train(self, watchers: Sequence[Watcher], received: Signals, until: int | None) -> None:
        stop = self.budget.steps or ENDLESS
        batches = self.batches.prefetched(start=self.step, stop=stop, stopped=received.__bool__)
        with (
            closing(self._sealed_data()) as self.data,
            closing(batches),
            closing(self.place.open()),
        ):
            if self.began_unchecked:
                self.data.require(received, newest=self.newest)
            self.speed = Speed.of(self.model, self.opened)
            share = core_share(
                self.loss,
                self.computation,
                compiled=self.train_config.compile,
                read=lambda: self.batches.read_unless(received.__bool__, self.step),
            )
            with share:
                self._steps(watchers, received, until, batches, share)

    def _steps(
        self,
        watchers: Sequence[Watcher],
        received: Signals,
        until: int | None,
        batches: Generator[Batch],
        share: CoreShare,
    ) -> None:
        """Make one step after another: batch, update, validation, metrics, checkpoint."""
        train = self.train_config
        self.clock.start()
        before = self.clock.seconds
        while not self.finished and self.step != until:
            share.follow()
            try:
                batch = self._next_batch(batches, received)
                update = self._update(batch, received)
            except (StepStopped, KeyboardInterrupt) as stopped:
                self._save_before_stop(watchers, received)
                if isinstance(stopped, KeyboardInterrupt):
                    raise
                if stopped.__cause__ is not None:
                    raise stopped.__cause__ from None
                return
            self.drawn += self.depths.counts(self.step, self.step + 1)
            self.step += 1
            seconds = self.clock.seconds
            self.spent = seconds if self.budget.seconds is None else self.ranks.of_first(seconds)
            self.finished = self.budget.is_spent(self.step, self.spent)
            held_out = None
            if self.finished or (train.evaluate_every and self.step % train.evaluate_every == 0):
                held_out = self._evaluate()
            metrics, timing = self._metrics(update, held_out), self._timing(seconds - before)
            before = seconds
            for watcher in watchers:
                watcher.step(metrics, timing)
            if self.finished or self.step == until or self.step % train.checkpoint_every == 0:
                self._save(watchers, received)

    def _next_batch(self, batches: Generator[Batch], received: Signals) -> Batch:
        """The next batch; raises on every rank if a rank has a signal, no batch or damaged data.

        The cause of `StepStopped` is the error with which reading the batch failed, or of a run
        that was moved.
        """
        assert self.data is not None
        batch, failure = None, self.place.moved()
        try:
            if failure is None:
                with received.may_interrupt():
                    batch = next(batches, None)
        except (OSError, ValueError, MemoryError) as error:
            failure = error
        damage = self.data.check.damage
        num_stops, num_failures, num_damaged = self.ranks.total(
            bool(received) or batch is None, failure is not None, damage is not None
        )
        if num_damaged:
            raise self.data.unusable(damage, newest=self.newest)
        if num_failures and failure is None:
            failure = ValueError("another rank cannot read its data")
        if num_stops or batch is None:
            raise StepStopped from failure
        return batch

    def _update(self, batch: Batch, received: Signals) -> Update:
        """Make one update.

        A signal that arrives before the last micro-batch stops the step before its update, which
        the resumed run makes again. Several ranks finish their step.
        """
        train, ranks = self.train_config, self.ranks
        torch.manual_seed(step_seed(train.seed, self.step, ranks.rank))
        rate = rate_of_step(train, self.budget, step=self.step, seconds=self.spent)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        if self.budget.seconds is not None:
            self.depths.reaches(self.step, self.spent / self.budget.seconds)
        self.optimizer.zero_grad()
        stopped = received.__bool__ if ranks.num_ranks == 1 else None
        with received.may_interrupt():
            computed = accumulate(self.loss, batch, self.computation, stopped=stopped)
        parameters = [
            parameter for group in self.optimizer.param_groups for parameter in group["params"]
        ]
        grad_norm = clip(parameters, train.clip_norm)
        summed, num_with_parts = ranks.total(computed.summed, computed.has_parts)
        loss = summed / computed.num_scored
        for name, value in (("loss", loss), ("gradient", grad_norm)):
            if not math.isfinite(value):
                where = self.batches.said(self.step)
                self.step += 1
                raise self._stopped_at(f"the {name} is {value}; its batch is {where}")
        self.optimizer.step()
        sums = ranks.summed(computed.parts) if num_with_parts else {}
        parts = {name: total / num for name, (total, num) in sums.items()}
        return Update(loss, parts, grad_norm, rate)

    def _evaluate(self) -> float:
        with self.clock.stopped():
            nll = validation_nll(
                self.loss,
                self.opened.held_out,
                num_windows=self.train_config.evaluate_windows,
                computation=self.computation,
                depth=self.depths.validated(self.step - 1),
            )
        if not math.isfinite(nll):
            raise self._stopped_at(f"the held-out NLL is {nll}")
        return nll

    def _metrics(self, update: Update, held_out: float | None) -> Metrics:
        passes, validated = self.depths.passes(self.step - 1)
        return Metrics(
            step=self.step,
            tokens=self.step * self.opened.tokens_per_step,
            flops=float(self.opened.flops_of_steps(self.drawn)),
            loss=update.loss,
            parts=update.parts,
            grad_norm=update.grad_norm,
            learning_rate=update.learning_rate,
            passes=passes,
            held_out_nll=held_out,
            held_out_passes=None if held_out is None else validated,
        )

    def _timing(self, seconds: float) -> Timing:
        """The speed of the last step; the time left is an estimate from the mean of all steps."""
        total = self.budget.total_steps(self.step, self.spent)
        return self.speed.timing(
            self.step,
            seconds=seconds,
            tokens=self.opened.tokens_per_step,
            flops=self.opened.flops_of_steps(self.depths.counts(self.step - 1, self.step)),
            seconds_left=max(0.0, (total - self.step) * self.spent / self.step),
        )

    def _save_before_stop(self, watchers: Sequence[Watcher], received: Signals) -> None:
        """Save the last whole step at once, whether the data was checked to its end or not."""
        if self.newest != runs.checkpoint_folder(self.run, self.step):
            self._save(watchers, received, waits_for_check=False)

    def _save(
        self, watchers: Sequence[Watcher], received: Signals, *, waits_for_check: bool = True
    ) -> None:
        assert self.data is not None
        train, unreadable = self.train_config, None
        with self.clock.stopped():
            if waits_for_check:
                unreadable = self.data.finish(received, newest=self.newest)
            if not self.loss.weights_are_finite():  # such a checkpoint is never written
                raise self._stopped_at("weights are not finite after the update")
            moved = self.ranks.from_first(self.place.moved())
            if moved is None:  # the files that watchers have open were moved too
                for watcher in watchers:
                    watcher.flush()
            if self.ranks.is_first:
                check_space(self.run, self.num_parameters * checkpoints.BYTES_PER_PARAMETER)
            self.place.newest = checkpoints.save(
                self.run,
                self.model,
                self.optimizer,
                Position(
                    step=self.step,
                    seconds=self.clock.seconds,
                    total_steps=self.budget.steps,
                    seed=train.seed,
                    finished=self.finished,
                    data_checked=self.data.is_complete(),
                    depth_starts=() if self.budget.seconds is None else tuple(self.depths.starts),
                ),
                config=self.config,
                files=self.vocabulary_files,
                parent=self.parent,
                ranks=self.ranks,
            )
            if self.ranks.is_first:
                checkpoints.prune(self.run, keep_last=train.keep_last, keep_every=train.keep_every)
        if (problem := unreadable or moved) is not None:
            raise problem

    def _stopped_at(self, problem: str) -> FloatingPointError:
        return FloatingPointError(
            f"step {self.step}: {problem}; the last good checkpoint is {self.newest}"
        )
