"""The learning rate of every step: a linear warm-up, then a cosine down to zero."""

import math

from mixerloop.config import TrainConfig
from mixerloop.training.budget import Budget


def learning_rate(step: int, *, peak: float, warmup_steps: float, total_steps: float) -> float:
    """The rate of update `step`, counted from 0.

    The last update of the warm-up is the first at the peak. The rate is zero from `total_steps` on.
    """
    if not 0 <= warmup_steps <= total_steps:
        raise ValueError(f"{warmup_steps} warm-up steps do not fit into {total_steps} steps")
    if step < 0:
        raise ValueError(f"step must be 0 or more, got {step}")
    if step < warmup_steps:
        return peak * min(1.0, (step + 1) / warmup_steps)
    if step >= total_steps:
        return 0.0
    progress = (step - warmup_steps) / (total_steps - warmup_steps)
    return peak * (1 + math.cos(math.pi * progress)) / 2


def rate_of_step(config: TrainConfig, budget: Budget, *, step: int, seconds: float) -> float:
    """The rate of an update of a run that has trained for some seconds."""
    total_steps = budget.total_steps(step, seconds)
    warmup_steps = warmup_steps_of(config, budget, total_steps)
    return learning_rate(
        step, peak=config.peak_lr, warmup_steps=warmup_steps, total_steps=total_steps
    )


def warmup_steps_of(config: TrainConfig, budget: Budget, total_steps: float) -> float:
    """The updates of the warm-up."""
    if config.warmup is not None:
        return config.warmup * total_steps
    return budget.warmup_steps(config.warmup_steps, total_steps)
