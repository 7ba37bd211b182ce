"""The learning rate of every step: a linear warm-up, then a cosine down to zero."""

import math


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
