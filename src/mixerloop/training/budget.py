"""How long a run trains: a number of updates, or a time."""

import math
from dataclasses import dataclass

from mixerloop.config import TrainConfig

LARGEST_STEPS = 2**53  # beyond it not every step is a number of its own


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Updates, or seconds; the other is None."""

    steps: int | None
    seconds: float | None

    def is_spent(self, step: int, seconds: float) -> bool:
        """Whether a run that made `step` updates in `seconds` is at its end."""
        if self.steps is not None:
            return step >= self.steps
        return seconds >= self._seconds

    def warmup_steps(self, wanted: int, total_steps: float) -> float:
        """The warm-up; of a budget that is too short for it, the first half."""
        if self.steps is not None and wanted <= self.steps:
            return wanted
        return min(wanted, total_steps / 2)

    def total_steps(self, step: int, seconds: float) -> float:
        """The updates the run will have made at its end.

        With a budget in seconds that is what the mean speed so far promises; it comes to `step`
        itself when the time is up, so that the learning rate still ends at zero.
        """
        if self.steps is not None:
            return self.steps
        return step * self._seconds / seconds if step and seconds else math.inf

    @property
    def _seconds(self) -> float:
        assert self.seconds is not None
        return self.seconds


def budget_of(config: TrainConfig, *, tokens_per_step: int, flops_per_token: float) -> Budget:
    """The updates a budget in tokens or FLOPs pays for, the last one included if it is begun."""
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
