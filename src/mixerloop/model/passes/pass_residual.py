"""The learned residual around a pass: after pass t, h <- h + w[t] * (h before the pass).

The released weights have one, zero at the start, that the paper does not mention. One table serves
all layers. What a pass is follows from addresses alone, so it holds under any schedule and any part
of one.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mixerloop.schedule import BLOCK, Occurrence, Schedule, Unit, looped_layers, num_passes_of


class PassResidualTable(nn.Module):
    """One row of weights per pass round a unit: a mixer, an ffn, a layer's block, or a stack.

    A stack is the layers that `schedule` repeats: all of them in a full loop, the core of a loop
    with a prelude and a coda.
    """

    def __init__(self, *, unit: Unit, schedule: Schedule, d_model: int) -> None:
        super().__init__()
        first, last = BLOCK if unit in ("block", "stack") else (unit, unit)
        layers = looped_layers(schedule)
        self._opening = (first, layers.start if unit == "stack" else None)
        self._closing = (last, layers.stop - 1 if unit == "stack" else None)
        self.weight = nn.Parameter(torch.empty(num_passes_of(schedule), d_model))

    def opens(self, occurrence: Occurrence) -> bool:
        """Whether a pass begins with this occurrence."""
        return _is_at(occurrence, *self._opening)

    def closes(self, occurrence: Occurrence) -> bool:
        """Whether a pass ends with this occurrence."""
        return _is_at(occurrence, *self._closing)

    def forward(
        self, occurrence: Occurrence, before_pass: Float[Tensor, "batch seq d_model"] | None
    ) -> Float[Tensor, "batch seq d_model"]:
        """What the pass that ends here adds to the residual."""
        if before_pass is None:
            raise ValueError(f"{occurrence} ends a pass that began earlier; give before_pass")
        if occurrence.pass_index >= len(self.weight):
            rows = len(self.weight)
            raise ValueError(f"{occurrence}: pass_residual was learned for {rows} passes")
        return self.weight[occurrence.pass_index] * before_pass


def _is_at(occurrence: Occurrence, sublayer: str, layer: int | None) -> bool:
    return occurrence.sublayer == sublayer and layer in (None, occurrence.layer)
