"""The learned residual around a pass: after pass t, h <- h + w[t] * (h before the pass).

The released weights have such a residual, zero at the start, that the paper does not mention. One
table of weights serves all layers.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mixerloop.draws import Draws
from mixerloop.kinds import PassResidualOptions
from mixerloop.model.passes import Passes, PassPlace, PassRule
from mixerloop.model.sublayer import Losses
from mixerloop.schedule import Occurrence, Schedule, num_passes_of

Residual = Float[Tensor, "batch seq d_model"]


class PassResidual(PassRule):
    """One row of weights for each pass."""

    def __init__(self, options: PassResidualOptions, passes: Passes, place: PassPlace) -> None:
        super().__init__(passes)
        self.weight = nn.Parameter(torch.empty(passes.num_passes, place.d_model))

    def check(self, schedule: Schedule) -> None:
        """Every pass needs a row of weights."""
        if num_passes_of(schedule) > len(self.weight):
            raise ValueError(f"pass_residual was learned for {len(self.weight)} passes")

    def open(
        self, residual: Residual, kept: Residual | None, occurrence: Occurrence
    ) -> tuple[Residual, Residual]:
        """Keep the residual that enters the pass."""
        return residual, residual

    def close(
        self, residual: Residual, kept: Residual | None, occurrence: Occurrence
    ) -> tuple[Residual, Losses | None]:
        """Add a learned share of the residual that entered the pass."""
        if kept is None:
            raise ValueError(f"{occurrence} ends a pass that began earlier; give `kept`")
        if occurrence.pass_index >= len(self.weight):
            rows = len(self.weight)
            raise ValueError(f"{occurrence}: pass_residual was learned for {rows} passes")
        return residual + self.weight[occurrence.pass_index] * kept, None

    def draw(self, name: str, draws: Draws) -> np.ndarray:
        """Nothing is added at the start."""
        return np.zeros(self.weight.shape)
