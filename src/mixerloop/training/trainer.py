"""The trainer: makes steps until the budget is spent or a signal asks it to stop.

A step depends on the seed, its number and the state before it (weights and optimizer), and on
nothing else. A run that was killed and resumed is therefore the same run, bit for bit.

The files of the data are hashed in the background. A checkpoint is written once they are all known
to be as they were prepared; a checkpoint that a signal asks for does not wait, and says so.
"""

import hashlib
import math
import os
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from mixerloop import machine, runs
from mixerloop.config import RunConfig, check_same_run
from mixerloop.data.batches import Batch, Batches
from mixerloop.data.data_check import DataCheck
from mixerloop.data.prepared import Prepared, open_prepared
from mixerloop.data.windows import Windows
from mixerloop.files import OpenFolder, check_space
from mixerloop.messages import shell_word
from mixerloop.model.accounting import training_flops_per_token
from mixerloop.model.checkpoint import load_model
from mixerloop.ops.gated_delta_rule import choose_form
from mixerloop.parent_record import read_parent
from mixerloop.training import checkpoints
from mixerloop.training.budget import Budget, budget_of
from mixerloop.training.core_share import CoreShare
from mixerloop.training.freezing import choose_trained, num_trained
from mixerloop.training.gemm_rate import gemm_rate
from mixerloop.training.gradients import Computation, StepStopped, accumulate, clip
from mixerloop.training.loss import SummedLoss
from mixerloop.training.lr_curve import learning_rate
from mixerloop.training.memory import check_batch_fits
from mixerloop.training.metrics import Metrics, Timing, Watcher
from mixerloop.training.optimizer import make_optimizer
from mixerloop.training.parallel import ParallelLoss, Ranks, local_parts
from mixerloop.training.position import Position
from mixerloop.training.signals import Signals, signals
from mixerloop.training.validation import validation_nll

BYTES_PER_PARAMETER = 12  # a checkpoint holds each weight and its two moments in float32
ENDLESS = 2**62


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Where and why a session ended."""

    step: int
    finished: bool
    stopped_by: int | None
    """The first signal of the session, even if it came with the last step; None if none came."""
    checkpoint: Path


class Trainer:
    """A run loaded from its newest checkpoint, ready for more steps."""

    def __init__(self, run: Path, config: RunConfig, *, ranks: Ranks) -> None:
        self.run, self.config, self.ranks = run, config, ranks
        _, self.train_config = config.for_training()
        train = self.train_config
        self.prepared, self.windows, self.held_out = open_data(config)
        self.batches = Batches(
            windows=self.windows,
            seed=train.seed,
            global_batch=train.global_batch,
            rank=ranks.rank,
            num_ranks=ranks.num_ranks,
        )
        check_batch_fits(config, self.windows, ranks=ranks)
        self.vocabulary_files = self.prepared.vocabulary_files()
        """Read now: the data folder may be gone when a tokenizer is saved."""

        choose_form(train.form, ranks.device.type)  # rejects a form this device cannot run
        folder = runs.find_checkpoint(run)
        self.model, saved = load_model(folder, form=train.form)
        check_same_run(saved, config, where=str(folder))
        self.parent = read_parent(folder)
        self.num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.flops_per_token = training_flops_per_token(self.model, context=self.windows.context)
        self.budget = self._budget()
        choose_trained(self.model, freeze=train.freeze)
        self.num_trained = num_trained(self.model)
        if train.compile:
            for layer in self.model.layers:
                layer.compile()
        loss = SummedLoss(self.model, recompute=train.recompute)
        self.summed_loss = ParallelLoss(loss, ranks=ranks, parallel=train.parallel)
        self.optimizer = make_optimizer(
            self.model, peak_lr=train.peak_lr, weight_decay=train.weight_decay
        )
        position = checkpoints.restore(folder, self.model, self.optimizer)
        if folder != runs.checkpoint_folder(run, position.step) or position.seed != train.seed:
            raise ValueError(f"{folder}: its position is not that of this run at this step")
        self._moved_from: Path | None = None
        self.step, self.finished, self.newest = position.step, position.finished, folder
        self.began_unchecked = not position.data_checked
        self.data_check: DataCheck | None = None
        """The check of the data in this session; None before the first step."""
        self.restored: list[str] = []
        """Files of the history that were not as the checkpoint has them, and were restored."""
        self.clock, self.spent = Clock(position.seconds), position.seconds
        self.computation = Computation(
            micro_batch=train.micro_batch or train.global_batch // ranks.num_ranks,
            compute_dtype=train.product_dtype,
            ranks=ranks,
        )

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one update, over all ranks."""
        return self.train_config.global_batch * self.windows.context

    def train(self, watchers: Sequence[Watcher] = (), *, until: int | None = None) -> Outcome:
        """Make steps to the end of the budget or to step `until`.

        The first rank passes its watchers, which receive the metrics of every step.
        """
        with signals() as received, _random_state_of_caller():
            if not self.finished and (until is None or self.step < until):
                self._train(watchers, received, until)
            elif self.began_unchecked:
                self._check_data(received)
        return Outcome(
            step=self.step,
            finished=self.finished,
            stopped_by=received.first,
            checkpoint=self.newest,
        )

    def _check_data(self, received: Signals) -> None:
        """Check the data of a run that was finished before its data was checked."""
        with closing(self._new_data_check()) as self.data_check:
            if (unreadable := self._finish_data_check(received)) is not None:
                raise unreadable

    def _new_data_check(self) -> DataCheck:
        return DataCheck(self.prepared.sealed_files() if self.ranks.is_first_of_machine else ())

    def _train(self, watchers: Sequence[Watcher], received: Signals, until: int | None) -> None:
        ranks = self.ranks
        batches = self.batches.prefetched(
            start=self.step,
            stop=self.budget.steps or ENDLESS,
            stopped=received.__bool__,
        )
        with (
            closing(self._new_data_check()) as self.data_check,
            closing(batches),
            closing(OpenFolder(self.run)) as self._folder,
        ):
            if self.began_unchecked:
                unreadable = self._finish_data_check(received)
                if unreadable is not None:
                    raise unreadable
            self.gemm_limit = sum(ranks.total(self._gemm_rate()))
            with self._core_share(received) as share:
                self._steps(watchers, received, until, batches, share)

    def _steps(
        self,
        watchers: Sequence[Watcher],
        received: Signals,
        until: int | None,
        batches: Generator[Batch],
        share: CoreShare,
    ) -> None:
        train = self.train_config
        self.clock.start()
        before = self.clock.seconds
        while not self.finished and self.step != until:
            share.follow()
            try:
                batch = self._next_batch(batches, received)
                loss, grad_norm, rate = self._update(batch, received)
            except (StepStopped, KeyboardInterrupt) as stopped:
                self._save_before_stop(watchers, received)
                if isinstance(stopped, KeyboardInterrupt):
                    raise
                if stopped.__cause__ is not None:
                    raise stopped.__cause__ from None
                return
            self.step += 1
            seconds = self.clock.seconds
            self.spent = self._agreed(seconds)
            self.finished = self.budget.is_spent(self.step, self.spent)
            held_out = None
            if self.finished or (train.evaluate_every and self.step % train.evaluate_every == 0):
                held_out = self._evaluate()
            metrics = Metrics(
                step=self.step,
                tokens=self.step * self.tokens_per_step,
                flops=float(self.step * self.tokens_per_step * self.flops_per_token),
                loss=loss,
                grad_norm=grad_norm,
                learning_rate=rate,
                held_out_nll=held_out,
            )
            timing = self._timing(seconds - before)
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
        batch, failure = None, self._moved()
        try:
            if failure is None:
                with received.may_interrupt():
                    batch = next(batches, None)
        except (OSError, ValueError, MemoryError) as error:
            failure = error
        damage = None if self.data_check is None else self.data_check.damage
        num_stops, num_failures, num_damaged = self.ranks.total(
            bool(received) or batch is None, failure is not None, damage is not None
        )
        if num_damaged:
            raise self._unusable(damage)
        if num_failures and failure is None:
            failure = ValueError("another rank cannot read its data")
        if num_stops or batch is None:
            raise StepStopped from failure
        return batch

    def _update(self, batch: Batch, received: Signals) -> tuple[float, float, float]:
        """Make one update; returns its loss, gradient norm and learning rate.

        A signal that arrives before the last micro-batch stops the step before its update, which
        the resumed run makes again. Several ranks finish their step.
        """
        train = self.train_config
        torch.manual_seed(step_seed(train.seed, self.step, self.ranks.rank))
        total_steps = self.budget.total_steps(self.step, self.spent)
        rate = learning_rate(
            self.step,
            peak=train.peak_lr,
            warmup_steps=self.budget.warmup_steps(train.warmup_steps, total_steps),
            total_steps=total_steps,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        stopped = received.__bool__ if self.ranks.num_ranks == 1 else None
        with received.may_interrupt():
            summed, num_scored = accumulate(
                self.summed_loss, batch, self.computation, stopped=stopped
            )
        parameters = [
            parameter for group in self.optimizer.param_groups for parameter in group["params"]
        ]
        grad_norm = clip(parameters, train.clip_norm)
        loss = sum(self.ranks.total(summed)) / num_scored
        for name, value in (("loss", loss), ("gradient", grad_norm)):
            if not math.isfinite(value):
                raise FloatingPointError(self._not_finite(name, value))
        self.optimizer.step()
        return loss, grad_norm, rate

    def _agreed(self, seconds: float) -> float:
        """The first rank's seconds for a budget in seconds: all ranks must end at the same step."""
        if self.budget.seconds is None:
            return seconds
        return sum(self.ranks.total(seconds if self.ranks.is_first else 0.0))

    def _evaluate(self) -> float:
        with self.clock.stopped():
            nll = validation_nll(
                self.summed_loss,
                self.held_out,
                num_windows=self.train_config.evaluate_windows,
                micro_batch=self.computation.micro_batch,
                compute_dtype=self.train_config.product_dtype,
                ranks=self.ranks,
            )
        if not math.isfinite(nll):
            raise FloatingPointError(self._stopped_at(f"the held-out NLL is {nll}"))
        return nll

    def _moved(self) -> ValueError | None:
        """The error of a run that was moved; its files are then saved where it is now.

        Raises if the run is gone. Only the first rank writes files, and looks.
        """
        place = self._folder.place() if self.ranks.is_first else self.run
        if place is None:
            lost = f"the steps after {self.newest.name} are lost"
            raise ValueError(f"{self.run} is gone; was it moved or removed? {lost}")
        if place != self.run:
            self._moved_from = self._moved_from or self.run
            self.run, self.newest = place, place / self.newest.relative_to(self.run)
        if self._moved_from is None:
            return None
        return ValueError(
            f"{self._moved_from} was moved to {self.run} while it was trained; all steps are saved "
            f"there; go on: mixerloop train --resume {shell_word(self.run)}"
        )

    def _save_before_stop(self, watchers: Sequence[Watcher], received: Signals) -> None:
        """Save the last whole step at once, whether the data was checked to its end or not."""
        if self.newest != runs.checkpoint_folder(self.run, self.step):
            self._save(watchers, received, waits_for_check=False)

    def _save(
        self, watchers: Sequence[Watcher], received: Signals, *, waits_for_check: bool = True
    ) -> None:
        with self.clock.stopped():
            unreadable = self._finish_data_check(received) if waits_for_check else None
            self._check_weights()
            moved = self.ranks.from_first(self._moved())
            if moved is None:  # the files that watchers have open were moved too
                for watcher in watchers:
                    watcher.flush()
            if self.ranks.is_first:
                check_space(self.run, self.num_parameters * BYTES_PER_PARAMETER)
            self.newest = checkpoints.save(
                self.run,
                self.model,
                self.optimizer,
                Position(
                    step=self.step,
                    seconds=self.clock.seconds,
                    total_steps=self.budget.steps,
                    seed=self.train_config.seed,
                    finished=self.finished,
                    data_checked=self._data_is_checked(),
                ),
                config=self.config,
                files=self.vocabulary_files,
                parent=self.parent,
                ranks=self.ranks,
            )
            if self.ranks.is_first:
                train = self.train_config
                checkpoints.prune(self.run, keep_last=train.keep_last, keep_every=train.keep_every)
        if (problem := unreadable or moved) is not None:
            raise problem

    def _finish_data_check(self, received: Signals) -> OSError | ValueError | None:
        """Wait for the check of the data; raises on every rank if a rank has damaged data.

        A file that cannot be read is returned, for the caller to raise after the work is saved. A
        signal ends the wait.
        """
        assert self.data_check is not None
        damage = unreadable = None
        try:
            self.data_check.finish(stopped=received.__bool__)
        except (OSError, ValueError) as error:
            if self.data_check.damage is None:
                unreadable = error
            else:
                damage = error
        num_damaged, num_unreadable = self.ranks.total(damage is not None, unreadable is not None)
        if num_damaged:
            raise self._unusable(damage)
        if num_unreadable and unreadable is None:
            unreadable = ValueError("another rank cannot read its data")
        return unreadable

    def _data_is_checked(self) -> bool:
        assert self.data_check is not None
        return not any(self.ranks.total(not self.data_check.is_complete))

    def _unusable(self, damage: Exception | None) -> ValueError:
        """The error of damaged data, on whichever rank it is."""
        problem = "another rank has found damaged data" if damage is None else str(damage)
        before = ", which was written before its data was checked" if self.began_unchecked else ""
        return ValueError(f"{problem}; the last checkpoint is {self.newest}{before}")

    def _timing(self, seconds: float) -> Timing:
        """The speed of one step; the time left is an estimate from the mean of all steps."""
        flops_per_second = self.tokens_per_step * self.flops_per_token / seconds
        self.gemm_limit = max(
            self.gemm_limit, flops_per_second
        )  # measured while other programs ran
        total = self.budget.total_steps(self.step, self.spent)
        return Timing(
            step=self.step,
            seconds=seconds,
            tokens_per_second=self.tokens_per_step / seconds,
            gemm_share=flops_per_second / self.gemm_limit,
            seconds_left=max(0.0, (total - self.step) * self.spent / self.step),
            threads=torch.get_num_threads(),
        )

    def _core_share(self, received: Signals) -> CoreShare:
        """The number of threads follows the free cores only where it cannot change the gradient."""
        train, ranks = self.train_config, self.ranks
        threads_are_ours = (
            ranks.num_ranks == 1
            and ranks.device.type == "cpu"
            and not train.compile
            and torch.get_num_threads() > 1
            and machine.NUM_THREADS not in os.environ
        )
        return CoreShare(follows=threads_are_ours and self._same_bits_on_one_thread(received))

    def _same_bits_on_one_thread(self, received: Signals) -> bool:
        """Whether the matrix library splits no sum between threads, for the shapes of this run."""
        batch = self.batches.read_unless(received.__bool__, self.step)
        if batch is None:
            return False
        size, num_threads = self.computation.micro_batch, torch.get_num_threads()
        starts = {0, (len(batch.inputs) - 1) // size * size}  # the last micro-batch may be smaller
        gradients = []
        for threads in (num_threads, 1):
            torch.set_num_threads(threads)
            self.optimizer.zero_grad()
            for start in starts:
                rows = slice(start, start + size)
                part = Batch(step=batch.step, inputs=batch.inputs[rows], labels=batch.labels[rows])
                accumulate(self.summed_loss, part, self.computation)
            gradients.append([weight.grad for weight in self.model.parameters()])
        torch.set_num_threads(num_threads)
        self.optimizer.zero_grad()
        return all(
            many is single is None
            or (many is not None and single is not None and many.equal(single))
            for many, single in zip(*gradients, strict=True)
        )

    def _budget(self) -> Budget:
        return budget_of(
            self.train_config,
            tokens_per_step=self.tokens_per_step,
            flops_per_token=self.flops_per_token,
        )

    def _gemm_rate(self) -> float:
        tokens = self.train_config.global_batch // self.ranks.num_ranks * self.windows.context
        return gemm_rate(
            self.model,
            tokens=tokens,
            compute_dtype=self.train_config.product_dtype,
            device=self.ranks.device,
        )

    def _check_weights(self) -> None:
        """Raise on every rank if a weight is not finite; such a checkpoint is never written."""
        finite = all(bool(weight.isfinite().all()) for weight in local_parts(self.model))
        (num_bad,) = self.ranks.total(0 if finite else 1)
        if num_bad:
            raise FloatingPointError(self._stopped_at("weights are not finite after the update"))

    def _not_finite(self, name: str, value: float) -> str:
        size = self.train_config.global_batch
        windows = self.batches.window_indices(self.step)
        shown = f"{', '.join(map(str, windows[:4]))}{', ...' if size > 4 else ''}"
        self.step += 1
        return self._stopped_at(
            f"the {name} is {value}; its batch is samples {(self.step - 1) * size:,} to "
            f"{self.step * size - 1:,} of the order, windows {shown}"
        )

    def _stopped_at(self, problem: str) -> str:
        return f"step {self.step}: {problem}; the last good checkpoint is {self.newest}"


class Clock:
    """Seconds of training, without evaluation and checkpoints."""

    def __init__(self, seconds: float) -> None:
        self._counted, self._started = seconds, None

    _started: float | None

    def start(self) -> None:
        """Start to count, on top of the seconds of earlier sessions."""
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds of training over all sessions, until now."""
        running = 0.0 if self._started is None else time.perf_counter() - self._started
        return self._counted + running

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Do not count the time spent inside the block."""
        self._counted, self._started = self.seconds, None
        try:
            yield
        finally:
            self.start()


def open_data(config: RunConfig) -> tuple[Prepared, Windows, Windows]:
    """The data with its training and held-out windows; rejects ids outside the vocabulary."""
    data, _ = config.for_training()
    prepared = open_prepared(data.path)
    train = prepared.windows("train", data.context)
    held_out = prepared.windows("held_out", data.context)
    if train.vocab_size > config.model.vocab_size:
        raise ValueError(
            f"{data.path}: {train.vocab_size:,} token ids do not fit the model's vocabulary of "
            f"{config.model.vocab_size:,}; set model.vocab_size"
        )
    return prepared, train, held_out


def _random_state_of_caller() -> AbstractContextManager[None]:
    """Give torch's global random numbers, which every step seeds, back as they were."""
    on_gpus = torch.cuda.is_initialized()
    return torch.random.fork_rng(range(torch.cuda.device_count()) if on_gpus else ())


def step_seed(seed: int, step: int, rank: int) -> int:
    """Random seed of one step on one rank, so that its draws do not depend on earlier steps."""
    digest = hashlib.sha256(f"step/{seed}/{step}/{rank}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1
