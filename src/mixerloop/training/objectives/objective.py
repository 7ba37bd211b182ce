"""What an objective is: a function of a batch's windows that returns a loss in named parts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mixerloop.kinds import OBJECTIVES, Kind, ObjectiveConfig, register_objective
from mixerloop.model.accounting import Work
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.model.passes import PassHooks
from mixerloop.model.walk import NO_STATISTICS, Kept, Statistics, Walked
from mixerloop.schedule import Occurrence, Schedule
from mixerloop.training.depth import Depth

Class = TypeVar("Class", bound=type)
NLL = "nll"
"""The part that every objective reports: the NLL after the last pass."""


class Parts(NamedTuple):
    """The loss of some windows, as sums over their scored tokens."""

    total: Float[Tensor, ""]
    """What is minimised."""
    reported: Mapping[str, Tensor]
    """The parts of the loss by name, without gradients."""
    statistics: Mapping[tuple[Occurrence, str], Tensor] = NO_STATISTICS
    """The statistics of coupled losses."""


@dataclass(frozen=True, kw_only=True)
class Forward:
    """The model as a step runs it."""

    model: LoopedLM
    depth: Depth
    recompute: bool = False
    weight: float | Tensor
    """Scored tokens that these windows stand for; an auxiliary loss, a mean, counts so often."""
    statistics: Statistics = field(default_factory=dict)
    """Those of the whole step, where a step is computed in parts."""

    def walk(
        self, tokens: Int[Tensor, "batch seq"], *, extra_rules: Sequence[PassHooks] = ()
    ) -> Walked:
        """Walk the depth's schedule, a part of it without gradients."""
        schedule, no_grad = self.depth.schedule, self.depth.no_grad
        if not no_grad:
            return self.part(self.model.embed(tokens), schedule, extra_rules=extra_rules)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.depth.embeds_with_grad):
            residual = self.model.embed(tokens)
            walked = self.part(residual, schedule[: no_grad.start], extra_rules=extra_rules)
        with torch.no_grad():
            walked = self.next_part(walked, schedule[no_grad.start : no_grad.stop], extra_rules)
        return self.next_part(walked, schedule[no_grad.stop :], extra_rules)

    def part(
        self,
        residual: Float[Tensor, "batch seq d_model"],
        schedule: Schedule,
        *,
        kept: Kept | None = None,
        extra_rules: Sequence[PassHooks] = (),
    ) -> Walked:
        """Walk a part of a schedule."""
        return self.model.walk(
            residual,
            schedule,
            kept=kept,
            extra_rules=extra_rules,
            statistics=self.statistics,
            recompute=self.recompute and torch.is_grad_enabled(),
        )

    def next_part(
        self, before: Walked, schedule: Schedule, extra_rules: Sequence[PassHooks] = ()
    ) -> Walked:
        """Walk the part of a schedule that comes after another part."""
        after = self.part(before.residual, schedule, kept=before.kept, extra_rules=extra_rules)
        return before.then(after)

    def nll(
        self,
        residual: Float[Tensor, "batch seq d_model"],
        labels: Int[Tensor, "batch seq"],
    ) -> Float[Tensor, ""]:
        """Nats of the labelled tokens, summed."""
        return self.model.summed_nll(residual.flatten(0, 1), labels.flatten())

    def with_auxiliary(self, loss: Tensor, walked: Walked, parts: Mapping[str, Tensor]) -> Parts:
        """Add the auxiliary losses of a walk to a loss and its parts."""
        reported = dict(parts)
        for name, auxiliary in sorted(walked.losses.items()):
            weighted = self.weight * auxiliary
            loss, reported[name] = loss + weighted, weighted.detach()
        return Parts(loss, reported, walked.statistics)


class Objective(ABC):
    """What a step minimises. A class is made with the options of its kind."""

    @abstractmethod
    def __call__(
        self, forward: Forward, tokens: Int[Tensor, "batch seq"], labels: Int[Tensor, "batch seq"]
    ) -> Parts:
        """The loss of these windows."""

    def work(self, depth: Depth) -> Work:
        """What runs for a token of a depth."""
        no_grad = depth.schedule[depth.no_grad.start : depth.no_grad.stop]
        return Work(with_grad=depth.with_grad, no_grad=no_grad)

    def check(self, depth: Depth) -> None:  # noqa: B027  (may be overridden)
        """Raise if this objective has no meaning for a depth; by default it always has."""


def objective_of(config: ObjectiveConfig) -> Objective:
    """The objective that a config names."""
    return OBJECTIVES[config.kind].load()(config.options)


def objective_kind(name: str, options: type[Any]) -> Callable[[Class], Class]:
    """Register a class as a kind of objective, from a file of your own."""

    def decorate(cls: Class) -> Class:
        register_objective(Kind(name, "objective", options, cls))
        return cls

    return decorate
