"""Input injection: every pass reads the residual that entered the loop, beside its own state.

A loop's state starts at zero. Before each pass a projection makes the residual from the state and
from the residual that entered the loop, as in Huginn.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mixerloop.kinds import InputInjectionOptions
from mixerloop.model.passes import Passes, PassPlace, PassRule
from mixerloop.model.sublayer import Losses
from mixerloop.schedule import Occurrence, Schedule

Residual = Float[Tensor, "batch seq d_model"]


class InputInjection(PassRule):
    """h <- adapter [h, h that entered the loop], before each pass."""

    def __init__(self, options: InputInjectionOptions, passes: Passes, place: PassPlace) -> None:
        super().__init__(passes)
        self.adapter = nn.Linear(2 * place.d_model, place.d_model, bias=False)

    def check(self, schedule: Schedule) -> None:
        """The passes of a layer must follow each other: one residual is kept at a time."""
        self.passes.check(schedule)
        layer = None
        for occurrence in filter(self.passes.opens, schedule):
            if occurrence.pass_index > 0 and occurrence.layer != layer:
                raise ValueError(
                    f"{occurrence} begins a later pass after a pass of another layer, and the "
                    "residual of one loop is kept at a time"
                )
            layer = occurrence.layer

    def open(
        self, residual: Residual, kept: Residual | None, occurrence: Occurrence
    ) -> tuple[Residual, Residual | None]:
        """Mix the state with the residual that entered the loop, which is kept for later passes."""
        if occurrence.pass_index == 0:
            residual, kept = torch.zeros_like(residual), residual
        if kept is None:
            raise ValueError(f"{occurrence} begins a later pass of a loop; give `kept`")
        injected = self.adapter(torch.cat([residual, kept], dim=-1))
        return injected.to(residual.dtype), kept

    def acts(self, occurrence: Occurrence) -> bool:
        """The adapter runs where a pass begins."""
        return self.passes.opens(occurrence)

    def pass_macs(self) -> int:
        """The adapter runs before each pass."""
        return self.adapter.weight.numel()

    def close(
        self, residual: Residual, kept: Residual | None, occurrence: Occurrence
    ) -> tuple[Residual, Losses | None]:
        """Nothing happens where a pass ends."""
        return residual, None
