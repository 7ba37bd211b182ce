"""Damped passes: of the change that a later pass makes to the residual, only a share is kept.

It has no weights. A model that was trained without a loop can be run with one this way.
"""

from jaxtyping import Float
from torch import Tensor

from mixerloop.kinds import PassDampingOptions
from mixerloop.model.passes import Passes, PassPlace, PassRule
from mixerloop.model.sublayer import Losses
from mixerloop.schedule import Occurrence, Schedule

Residual = Float[Tensor, "batch seq d_model"]


class PassDamping(PassRule):
    """After each pass but the first: h <- h before + share * (h - h before)."""

    def __init__(self, options: PassDampingOptions, passes: Passes, place: PassPlace) -> None:
        super().__init__(passes)
        self.share = options.share

    def check(self, schedule: Schedule) -> None:
        """A pass must end before another begins."""
        self.passes.check(schedule)

    def open(
        self, residual: Residual, kept: Residual | None, occurrence: Occurrence
    ) -> tuple[Residual, Residual | None]:
        """Keep the residual that enters the pass."""
        return residual, residual

    def close(
        self, residual: Residual, kept: Residual | None, occurrence: Occurrence
    ) -> tuple[Residual, Losses | None]:
        """Take back a share of the pass's change."""
        if occurrence.pass_index == 0:
            return residual, None
        if kept is None:
            raise ValueError(f"{occurrence} ends a pass that began earlier; give `kept`")
        return kept + self.share * (residual - kept), None
