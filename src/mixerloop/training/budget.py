"""How long a run trains: a number of updates, or a time."""

import math
from dataclasses import dataclass

from mixerloop.config import TrainConfig

LARGEST_STEPS = 2**53  # a float64 represents every integer up to here


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A limit in updates or in seconds; the unused limit is None."""

    steps: int | None
    seconds: float | None

    def is_spent(self, step: int, seconds: float) -> bool:
        """Whether a run that has made `step` updates in `seconds` has used its budget."""
        if self.steps is not None:
            return step >= self.steps
        return seconds >= self._seconds

    def warmup_steps(self, wanted: int, total_steps: float) -> float:
        """The updates of the warm-up, cut to half of a budget that is too short for `wanted`."""
        if self.steps is not None and wanted <= self.steps:
            return wanted
        return min(wanted, total_steps / 2)

    def total_steps(self, step: int, seconds: float) -> float:
        """The updates the run will have made at its end.

        With a budget in seconds this is an estimate from the mean speed of the run until now. The
        estimate equals `step` when the time is up, so the learning rate still ends at zero.
        """
        if self.steps is not None:
            return self.steps
        return step * self._seconds / seconds if step and seconds else math.inf

    @property
    def _seconds(self) -> float:
        assert self.seconds is not None
        return self.seconds


def budget_of(config: TrainConfig, *, tokens_per_step: int, flops_per_token: float) -> Budget:
    """The budget of a config; tokens and FLOPs are rounded up to whole updates."""
    if config.seconds is not None:
        return Budget(steps=None, seconds=config.seconds)
    steps = config.steps
    if config.tokens is not None:
        steps = -(-config.tokens // tokens_per_step)
    if config.flops is not None:
        steps = math.ceil(config.flops / (tokens_per_step * flops_per_token))
    assert steps is not None
    if steps > LARGEST_STEPS:
        raise ValueError(f"the budget pays for {steps:.3g} steps, more than {LARGEST_STEPS:,}")
    return Budget(steps=steps, seconds=None)
