"""Pass rules: what happens where a pass of a loop begins and ends.

A pass goes round a unit: a mixer, an ffn, a layer's mixer and ffn, the layers that the schedule
repeats, or the layers after those. A pass rule may change the residual at both ends of a pass, keep
a tensor in between, and add losses. It must treat every token alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from mixerloop.kinds import Kind, register
from mixerloop.model.norm import RMSNorm
from mixerloop.model.sublayer import Losses, SublayerModule
from mixerloop.schedule import (
    BLOCK,
    Occurrence,
    Schedule,
    Sublayer,
    Unit,
    looped_layers,
    num_layers_of,
    num_passes_of,
)

Class = TypeVar("Class", bound=type)
Residual = Float[Tensor, "batch seq d_model"]


@dataclass(frozen=True)
class Passes:
    """Where passes round a unit begin and end.

    This follows from addresses alone, so it holds under any schedule and in any part of one.
    """

    first: tuple[Sublayer, int | None]
    """The sublayer that a pass begins with, and its layer; None for any layer."""
    last: tuple[Sublayer, int | None]
    num_passes: int
    """Passes of the schedule that the model was made for."""

    @classmethod
    def round_unit(cls, unit: Unit, schedule: Schedule) -> "Passes":
        """The passes round a unit; a stack is the layers that the schedule repeats."""
        if unit in ("mixer", "ffn"):
            return cls((unit, None), (unit, None), num_passes_of(schedule))
        first: int | None = None
        last: int | None = None
        if unit != "block":
            looped, num_layers = looped_layers(schedule), num_layers_of(schedule)
            layers = looped if unit == "stack" else range(looped.stop, num_layers)
            if not layers:
                raise ValueError("there is no coda: no layer comes after those that repeat")
            first, last = layers.start, layers.stop - 1
        return cls((BLOCK[0], first), (BLOCK[1], last), num_passes_of(schedule))

    def opens(self, occurrence: Occurrence) -> bool:
        """Whether a pass begins with this occurrence."""
        sublayer, layer = self.first
        return occurrence.sublayer == sublayer and layer in (None, occurrence.layer)

    def closes(self, occurrence: Occurrence) -> bool:
        """Whether a pass ends with this occurrence."""
        sublayer, layer = self.last
        return occurrence.sublayer == sublayer and layer in (None, occurrence.layer)

    def check(self, schedule: Schedule) -> None:
        """Raise unless passes repeat, where anything does, and end before another pass begins."""
        if num_passes_of(schedule) > 1 and not self._repeat_in(schedule):
            raise ValueError("the schedule repeats something else")
        is_open = False
        for occurrence in schedule:
            if self.opens(occurrence):
                if is_open:
                    raise ValueError(f"{occurrence} begins a pass before the last pass has ended")
                is_open = True
            if self.closes(occurrence):
                if not is_open:
                    raise ValueError(f"{occurrence} ends a pass that has not begun")
                is_open = False

    def _repeat_in(self, schedule: Schedule) -> bool:
        return any(self.opens(occurrence) and occurrence.pass_index > 0 for occurrence in schedule)

    def number_in(self, schedule: Schedule) -> int:
        """How many passes a schedule makes."""
        return sum(self.opens(occurrence) for occurrence in schedule)


@runtime_checkable
class PassHooks(Protocol):
    """What the walk asks of a pass rule."""

    @property
    def passes(self) -> Passes:
        """Where passes begin and end."""
        ...

    def start(self, embedded: Residual) -> Residual | None:
        """The tensor to keep from before the first occurrence, if any."""
        ...

    def open(
        self, residual: Residual, kept: Residual | None, occurrence: Occurrence
    ) -> tuple[Residual, Residual | None]:
        """The residual that enters a pass, and the tensor to keep until the pass ends."""
        ...

    def close(
        self, residual: Residual, kept: Residual | None, occurrence: Occurrence
    ) -> tuple[Residual, Losses | None]:
        """The residual after a pass, and losses."""
        ...


@dataclass(frozen=True)
class PassPlace:
    """Where a pass rule stands: all that its class is given besides its options and passes."""

    final_norm: RMSNorm
    """The norm of the readout, whose weights a rule may share."""

    @property
    def d_model(self) -> int:
        """Width of the residual."""
        return len(self.final_norm.weight)


class PassRule(nn.Module, ABC):
    """Something between passes. A class is made with its options, `Passes` and a `PassPlace`.

    It has the methods of `PassHooks`; unless overridden, nothing is kept and nothing happens before
    a pass. `draw` gives initial values, as in every sublayer.
    """

    def __init__(self, passes: Passes) -> None:
        super().__init__()
        self.passes = passes

    def start(self, embedded: Residual) -> Residual | None:  # noqa: D102
        return None

    def open(  # noqa: D102
        self, residual: Residual, kept: Residual | None, occurrence: Occurrence
    ) -> tuple[Residual, Residual | None]:
        return residual, kept

    @abstractmethod
    def close(  # noqa: D102
        self, residual: Residual, kept: Residual | None, occurrence: Occurrence
    ) -> tuple[Residual, Losses | None]: ...

    def check(self, schedule: Schedule) -> None:
        """Raise if this rule cannot do its work under a schedule; by default it always can."""

    def acts(self, occurrence: Occurrence) -> bool:
        """Whether the weights of this rule are used where this occurrence begins or ends a pass."""
        return self.passes.closes(occurrence)

    def pass_macs(self) -> int:
        """Multiply-adds with weights around one pass, per token."""
        return 0

    draw = SublayerModule.draw


def pass_rule_kind(name: str, options: type[Any]) -> Callable[[Class], Class]:
    """Register a class as a kind of pass rule, from a file of your own."""

    def decorate(cls: Class) -> Class:
        register(Kind(name, "pass rule", options, cls))
        return cls

    return decorate
