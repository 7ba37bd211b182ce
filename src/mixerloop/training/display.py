"""The progress of a training session, on the terminal or in a log."""

from mixerloop.history import RESTORED
from mixerloop.progress_line import ProgressLine, duration
from mixerloop.training.lr_curve import warmup_steps_of
from mixerloop.training.metrics import Metrics, Timing
from mixerloop.training.trainer import Trainer


def show_training(trainer: Trainer) -> "TrainingLine":
    """Print the size and settings of a run, and make the watcher that shows its steps."""
    train, steps, tokens = (
        trainer.train_config,
        trainer.budget.steps,
        trainer.opened.tokens_per_step,
    )
    line = TrainingLine(steps)
    length = ""
    if steps is not None:
        warmup = warmup_steps_of(train, trainer.budget, steps)
        length = f" of {steps:,}, the first {warmup:,.0f} a warm-up"
    line.say(
        f"{trainer.run}: {_parameters(trainer)}, {trainer.model.form} "
        f"rule in {train.compute_dtype}, {tokens:,} tokens a step, from step "
        f"{trainer.step:,}{length}"
    )
    if trainer.parent is not None and trainer.step == 0:
        line.say(f"{trainer.run}: starts from {trainer.parent}")
    for name in trainer.restored:
        line.say(f"{trainer.run / name}: {RESTORED} {trainer.newest}")
    return line


def _parameters(trainer: Trainer) -> str:
    number, trained = trainer.num_parameters, trainer.num_trained
    if trained == number:
        return f"{number:,} parameters"
    return f"{number:,} parameters ({trained:,} trained, {number - trained:,} frozen)"


class TrainingLine:
    """A watcher that shows the latest step and how much of the budget is used."""

    def __init__(self, total_steps: int | None) -> None:
        self._total_steps = total_steps
        self._line = ProgressLine()
        self._held_out: tuple[str, ...] = ()

    def say(self, text: str) -> None:
        """Print a line above the progress line."""
        self._line.say(text)

    def step(self, metrics: Metrics, timing: Timing) -> None:
        """Show a step, with the last validation NLL there was."""
        if metrics.held_out_nll is not None:
            self._held_out = (f"held-out {metrics.held_out_nll:.4f}",)
        total = self._total_steps
        self._line.show(
            f"step {metrics.step:,}/{total:,}" if total else f"step {metrics.step:,}",
            f"loss {metrics.loss:.4f}",
            *((f"NLL {metrics.nll:.4f}",) if metrics.nll != metrics.loss else ()),
            *self._held_out,
            f"{timing.tokens_per_second:,.0f} tokens/s",
            f"{timing.gemm_share:.0%} of GEMM",
            f"{duration(timing.seconds_left)} left",
            share=metrics.step / total if total else None,
        )

    def flush(self) -> None:
        """Nothing to do: every step is shown at once."""

    def close(self) -> None:
        """End the progress line, so that later output starts on a new line."""
        self._line.close()
