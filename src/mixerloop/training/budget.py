"""How long a run trains: a number of updates, or a time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mixerloop.config import TrainConfig
from mixerloop.training.depth import STEPS_AT_ONCE, Depths

LARGEST_STEPS = 2**53  # a float64 represents every integer up to here
MOST_DRAWS = 10**9  # are drawn in a minute


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A limit in updates or in seconds; the unused limit is None."""

    steps: int | None
    seconds: float | None
    starts: tuple[int, ...] = ()
    """The steps from which schedules are trained in turn; empty for other depths, and until they
    begin where the budget is in seconds."""

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


def budget_of(
    config: TrainConfig,
    *,
    tokens_per_step: int,
    flops_per_token: float,
    depths: Depths | None = None,
    flops_of_depths: Sequence[float] = (),
) -> Budget:
    """The budget of a config; tokens and FLOPs are rounded up to whole updates.

    Where steps have different depths, FLOPs are those of each step's own depth.
    """
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
    starts: tuple[int, ...] = ()
    if depths is not None and depths.shares:
        if config.flops is None:
            starts = tuple(_up(share * steps) for share in depths.shares)
        else:
            steps_paid = config.flops / tokens_per_step
            steps, starts = _switched(depths, [steps_paid / flops for flops in flops_of_depths])
        _check_phases(depths, starts, steps)
    elif depths is not None and not depths.is_fixed and config.flops is not None:
        per_draw = tokens_per_step / depths.draws_per_step
        steps = _paid(depths, [per_draw * flops for flops in flops_of_depths], config.flops, steps)
    return Budget(steps=steps, seconds=None, starts=starts)


def _check_phases(depths: Depths, starts: Sequence[int], steps: int) -> None:
    """Raise if a schedule gets no step of the budget."""
    for share, start, end in zip(depths.shares, starts, (*starts[1:], steps), strict=True):
        if start >= end:
            raise ValueError(
                f"train.schedule_at: the schedule from a share of {share} gets none of the "
                f"{steps:,} steps"
            )


def _up(steps: float) -> int:
    """Whole steps; a share such as 0.7 of 10 is 7, whatever the rounding of the product."""
    return math.ceil(round(steps, 6))


def _switched(depths: Depths, steps_of_whole: Sequence[float]) -> tuple[int, tuple[int, ...]]:
    """The steps of a budget in FLOPs, and those from which schedules are trained in turn."""
    step, spent, starts = 0, 0.0, []
    for whole, until in zip(steps_of_whole, (*depths.shares[1:], 1.0), strict=True):
        starts.append(step)
        num = max(0, _up((until - spent) * whole))
        step, spent = step + num, spent + num / whole
    return step, tuple(starts)


def _paid(depths: Depths, flops_of_draws: Sequence[float], budget: float, expected: int) -> int:
    """The first number of steps whose own FLOPs reach a budget."""
    if expected * depths.draws_per_step > MOST_DRAWS:
        raise ValueError(
            f"the budget pays for {expected:.3g} steps of a drawn depth, more than "
            f"{MOST_DRAWS // depths.draws_per_step:,}"
        )
    costs, spent, step = np.array(flops_of_draws), 0.0, 0
    while True:
        of_steps = spent + np.cumsum(costs[depths.drawn(step, step + STEPS_AT_ONCE)].sum(axis=1))
        if of_steps[-1] >= budget:
            return step + 1 + int(np.searchsorted(of_steps, budget))
        spent, step = float(of_steps[-1]), step + STEPS_AT_ONCE
