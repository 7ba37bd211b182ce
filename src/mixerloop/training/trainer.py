"""The trainer: makes steps until the budget is spent or a signal asks it to stop.

A step depends on the seed, its number and the state before it (weights and optimizer), and on
nothing else. A run that was killed and resumed is therefore the same run, bit for bit.
"""

import hashlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from mixerloop import machine, runs
from mixerloop.config import RunConfig, check_same_run
from mixerloop.data.batches import Batch, Batches
from mixerloop.data.prepared import open_prepared
from mixerloop.data.windows import Windows
from mixerloop.files import check_space
from mixerloop.model.accounting import training_flops_per_token
from mixerloop.model.checkpoint import load_model
from mixerloop.ops.gated_delta_rule import choose_form
from mixerloop.training import checkpoints
from mixerloop.training.budget import Budget, budget_of
from mixerloop.training.core_share import CoreShare
from mixerloop.training.gemm_rate import gemm_rate
from mixerloop.training.gradients import Computation, accumulate, clip
from mixerloop.training.loss import SummedLoss
from mixerloop.training.lr_curve import learning_rate
from mixerloop.training.metrics import Metrics, Timing, Watcher
from mixerloop.training.optimizer import hold_what_never_runs, make_optimizer
from mixerloop.training.parallel import ParallelLoss, Ranks, local_parts
from mixerloop.training.position import Position
from mixerloop.training.validation import validation_nll

BYTES_PER_PARAMETER = 12  # a checkpoint holds each weight and its two moments in float32
ENDLESS = 2**62


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Where and why a session ended."""

    step: int
    finished: bool
    stopped_by: int | None
    """The signal that ended the session early; None on a rank that received no signal."""
    checkpoint: Path


class Trainer:
    """A run loaded from its newest checkpoint, ready for more steps."""

    def __init__(self, run: Path, config: RunConfig, *, ranks: Ranks) -> None:
        self.run, self.config, self.ranks = run, config, ranks
        data, self.train_config = config.for_training()
        train = self.train_config
        self.windows, self.held_out = open_data(config)
        self.batches = Batches(
            windows=self.windows,
            seed=train.seed,
            global_batch=train.global_batch,
            rank=ranks.rank,
            num_ranks=ranks.num_ranks,
        )
        tokenizer = Path(data.path) / runs.TOKENIZER
        self.tokenizer = tokenizer if tokenizer.is_file() else None

        choose_form(train.form, ranks.device.type)  # rejects a form this device cannot run
        folder = runs.find_checkpoint(run)
        self.model, saved = load_model(folder, form=train.form)
        check_same_run(saved, config, where=str(folder))
        self.num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.flops_per_token = training_flops_per_token(self.model, context=self.windows.context)
        self.budget = self._budget()
        hold_what_never_runs(self.model)
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
        self.step, self.finished, self.newest = position.step, position.finished, folder
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
        stopped_by = None
        if not self.finished and (until is None or self.step < until):
            with signals() as received:
                stopped_by = self._train(watchers, received, until)
        return Outcome(
            step=self.step,
            finished=self.finished,
            stopped_by=stopped_by,
            checkpoint=self.newest,
        )

    def _train(
        self, watchers: Sequence[Watcher], received: list[int], until: int | None
    ) -> int | None:
        train, ranks = self.train_config, self.ranks
        self.gemm_limit = sum(ranks.total(self._gemm_rate()))
        batches = self.batches.prefetched(start=self.step, stop=self.budget.steps or ENDLESS)
        with closing(batches), self._core_share() as share:
            self.clock.start()
            before = self.clock.seconds
            for batch in batches:
                share.follow()
                loss, grad_norm, rate, stop = self._update(batch, received)
                self.step += 1
                stop = stop or self.step == until
                seconds = self.clock.seconds
                self.spent = self._agreed(seconds)
                self.finished = self.budget.is_spent(self.step, self.spent)
                held_out = None
                if self.finished or (
                    train.evaluate_every and self.step % train.evaluate_every == 0
                ):
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
                if self.finished or stop or self.step % train.checkpoint_every == 0:
                    self._save(watchers)
                if self.finished or stop:
                    break
        return received[0] if received and not self.finished else None

    def _update(self, batch: Batch, received: list[int]) -> tuple[float, float, float, bool]:
        """Make one update; returns its loss, gradient norm, learning rate, and whether to stop."""
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
        summed, num_scored = accumulate(self.summed_loss, batch, self.computation)
        parameters = [
            parameter for group in self.optimizer.param_groups for parameter in group["params"]
        ]
        grad_norm = clip(parameters, train.clip_norm)
        summed, num_signals = self.ranks.total(summed, len(received))
        loss = summed / num_scored
        for name, value in (("loss", loss), ("gradient", grad_norm)):
            if not math.isfinite(value):
                raise FloatingPointError(self._not_finite(name, value))
        self.optimizer.step()
        return loss, grad_norm, rate, num_signals > 0

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

    def _save(self, watchers: Sequence[Watcher]) -> None:
        with self.clock.stopped():
            self._check_weights()
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
                ),
                config=self.config,
                tokenizer=self.tokenizer,
                ranks=self.ranks,
            )
            if self.ranks.is_first:
                train = self.train_config
                checkpoints.prune(self.run, keep_last=train.keep_last, keep_every=train.keep_every)

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

    def _core_share(self) -> CoreShare:
        """The number of threads follows the free cores only where it cannot change the gradient."""
        train, ranks = self.train_config, self.ranks
        threads_are_ours = (
            ranks.num_ranks == 1
            and ranks.device.type == "cpu"
            and not train.compile
            and torch.get_num_threads() > 1
            and machine.NUM_THREADS not in os.environ
        )
        return CoreShare(follows=threads_are_ours and self._same_bits_on_one_thread())

    def _same_bits_on_one_thread(self) -> bool:
        """Whether the matrix library splits no sum between threads, for the shapes of this run."""
        batch = self.batches.read(self.step)
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


def open_data(config: RunConfig) -> tuple[Windows, Windows]:
    """The training windows and the held-out windows; rejects token ids outside the vocabulary."""
    data, _ = config.for_training()
    prepared = open_prepared(data.path)
    train = prepared.windows("train", data.context)
    held_out = prepared.windows("held_out", data.context)
    if train.vocab_size > config.model.vocab_size:
        raise ValueError(
            f"{data.path}: {train.vocab_size:,} token ids do not fit the model's vocabulary of "
            f"{config.model.vocab_size:,}; set model.vocab_size"
        )
    return train, held_out


def step_seed(seed: int, step: int, rank: int) -> int:
    """Random seed of one step on one rank, so that its draws do not depend on earlier steps."""
    digest = hashlib.sha256(f"step/{seed}/{step}/{rank}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT inside the block; a second Ctrl-C interrupts at once.

    Under `torchrun` a second SIGINT does not interrupt: the terminal sends Ctrl-C to every process,
    and torchrun then sends it to its processes again.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and received and not torch.distributed.is_initialized():
            raise KeyboardInterrupt
        received.append(number)

    old = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
