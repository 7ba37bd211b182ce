"""Depth: which schedule a step trains, and how far back its gradients flow.

A depth is a function of the seed and the step, the same on every rank and after every restart. For
`train.schedule_at` it is a function of the share of the budget that was spent.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from mixerloop.config import ModelConfig, TrainConfig
from mixerloop.data.random import numbers_at, stream_key
from mixerloop.kinds import FIXED, pass_weights
from mixerloop.notation import resolve
from mixerloop.schedule import (
    Schedule,
    looped_layers,
    num_passes_of,
    repeated_unit,
    with_passes,
)

STEPS_AT_ONCE = 4096
WHOLE = 1 << 53  # the integers that float64 represents


@dataclass(frozen=True)
class Depth:
    """The schedule of a step or of a sequence, and the part of it that has no gradient."""

    schedule: Schedule
    no_grad: range = range(0)
    """Places in the schedule that run without gradients, so that no gradient passes them."""
    embeds_with_grad: bool = True
    """Whether a gradient reaches the embedding of the tokens."""

    @property
    def with_grad(self) -> Schedule:
        """The occurrences that run with gradients."""
        return self.schedule[: self.no_grad.start] + self.schedule[self.no_grad.stop :]


@dataclass
class Depths:
    """The depths that a run trains, and the depth of each step."""

    depths: tuple[Depth, ...]
    weights: tuple[float, ...]
    """The share of the draws, or of the budget, that has each depth."""
    own: Schedule
    """The schedule of the model."""
    seed: int
    draws_per_step: int = 1
    """1 where all sequences of a batch have one depth; otherwise the sequences of a batch."""
    shares: tuple[float, ...] = ()
    """The shares of the budget from which each depth is trained; empty where depths are drawn."""
    starts: list[int] = field(default_factory=list)
    """The steps from which each depth is trained, as far as they are known."""

    @property
    def is_fixed(self) -> bool:
        """Whether every step has the same depth."""
        return len(self.depths) == 1

    @property
    def per_sequence(self) -> bool:
        """Whether each sequence of a batch draws its own depth."""
        return self.draws_per_step > 1

    def at(self, step: int) -> int:
        """The number of the depth of a step."""
        if self.shares:
            return bisect_right(self.starts, step) - 1
        return int(self.of_sequences(step)[0])

    def of_sequences(self, step: int) -> np.ndarray:
        """The number of the depth of each sequence of a batch, or of all of them."""
        if self.is_fixed or self.shares:
            return np.full(self.draws_per_step, self.at(step) if self.shares else 0)
        return self.drawn(step, step + 1)[0]

    def validated(self, step: int) -> Depth | None:
        """The depth that validation after a step measures; None for the model's own schedule."""
        return self.depths[self.at(step)] if self.shares else None

    def passes(self, step: int) -> tuple[int | None, int | None]:
        """The passes that a step trained, where they have a number, and those of validation.

        None where every step trains the model's own schedule.
        """
        if self.is_fixed and self.depths[0].schedule == self.own:
            return None, None
        trained = self.depths[self.at(step)]
        validated = trained.schedule if self.shares else self.own
        of_step = None if self.per_sequence else num_passes_of(trained.schedule)
        return of_step, num_passes_of(validated)

    def reaches(self, step: int, share: float) -> None:
        """Note that a step begins with this share of the budget spent."""
        while len(self.starts) < len(self.shares) and share >= self.shares[len(self.starts)]:
            self.starts.append(step)

    def counts(self, start: int, stop: int) -> np.ndarray:
        """How many draws of steps `start` to `stop` have each depth."""
        counts = np.zeros(len(self.depths), dtype=np.int64)
        if self.is_fixed:
            counts[0] = (stop - start) * self.draws_per_step
        elif self.shares:
            ends = [*self.starts[1:], stop]
            for number, (first, end) in enumerate(zip(self.starts, ends, strict=True)):
                counts[number] = max(0, min(end, stop) - max(first, start))
        else:
            for begin in range(start, stop, STEPS_AT_ONCE):
                drawn = self.drawn(begin, min(stop, begin + STEPS_AT_ONCE))
                counts += np.bincount(drawn.ravel(), minlength=len(counts))
        return counts

    def drawn(self, start: int, stop: int) -> np.ndarray:
        """The number of the depth of each draw of these steps: [steps, draws]."""
        key = stream_key("depth", self.seed)
        numbers = numbers_at(key, np.arange(start, stop), self.draws_per_step)
        uniform = (numbers >> np.uint64(11)) / WHOLE
        ends = np.cumsum(self.weights)[:-1]
        return np.searchsorted(ends, uniform, side="right")


def depths_of(model: ModelConfig, train: TrainConfig) -> Depths:
    """The depths that a config asks for; raises if they do not fit the model's schedule."""
    own = model.occurrences()
    weighted: list[tuple[Schedule, float]] = [(own, 1.0)]
    where = "train.depth"
    try:
        if train.schedule_at:
            where = "train.schedule_at"
            weighted = _in_turn(model, train.schedule_at)
        elif not isinstance(train.depth, str):
            total = sum(weight for weight, _ in train.depth)
            if total == math.inf:
                raise ValueError("the sum of the weights is too large")
            weighted = [
                (resolve(text, model.num_layers), weight / total) for weight, text in train.depth
            ]
        elif train.depth != FIXED:
            shares = pass_weights(train.depth)
            weighted = [(with_passes(own, passes), share) for passes, share in shares.items()]
        where = "train.backprop"
        carries = any(getattr(rule, "carries_input", False) for rule in model.pass_rules().values())
        depths = tuple(_truncated(schedule, train.backprop, carries) for schedule, _ in weighted)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return Depths(
        depths=depths,
        weights=tuple(weight for _, weight in weighted),
        own=own,
        seed=train.seed,
        draws_per_step=train.global_batch if train.depth_per == "sequence" else 1,
        shares=tuple(share for share, _ in train.schedule_at),
        starts=[0] if train.schedule_at else [],
    )


def _in_turn(
    model: ModelConfig, phases: Sequence[tuple[float, str]]
) -> list[tuple[Schedule, float]]:
    """The schedule of each phase, and its share of the budget."""
    schedules = [resolve(text, model.num_layers) for _, text in phases]
    if schedules[-1] != model.occurrences():
        raise ValueError(
            f"ends with {phases[-1][1]}, and model.schedule is {model.schedule}: the schedule that "
            "is trained last must be the model's"
        )
    shares = [after - before for before, after in pairwise([*(s for s, _ in phases), 1.0])]
    return list(zip(schedules, shares, strict=True))


def _truncated(schedule: Schedule, backprop: int | None, carries_input: bool) -> Depth:
    """The depth whose gradients flow through the last passes of the stack only.

    Layers before the stack have gradients if a pass rule hands their output to every pass.
    """
    num_passes = num_passes_of(schedule)
    if backprop is None or num_passes <= backprop:
        return Depth(schedule)
    if repeated_unit(schedule) != "stack":
        raise ValueError(
            "the schedule does not repeat a stack of layers, so a pass cannot be cut off; "
            "full_loop does"
        )
    core = looped_layers(schedule).start
    first = [number for number, one in enumerate(schedule) if one.layer == core]
    cut = next(n for n in first if schedule[n].pass_index == num_passes - backprop)
    no_grad = range(first[0] if carries_input else 0, cut)
    return Depth(schedule, no_grad, embeds_with_grad=carries_input)
