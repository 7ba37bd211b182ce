"""A toy pass rule: every pass reads the embedding again, and large residuals cost something."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mixerloop.draws import Draws
from mixerloop.model.passes import Passes, PassPlace, PassRule, pass_rule_kind
from mixerloop.model.sublayer import Losses
from mixerloop.schedule import Occurrence


@dataclass(frozen=True, kw_only=True)
class RereadingOptions:
    unit: str
    penalty: float = 0.01


@pass_rule_kind("rereading", RereadingOptions)
class Rereading(PassRule):
    def __init__(self, options: RereadingOptions, passes: Passes, place: PassPlace) -> None:
        super().__init__(passes)
        self.penalty = options.penalty
        self.weight = nn.Parameter(torch.empty(place.d_model))

    def start(self, embedded: Tensor) -> Tensor:
        return embedded

    def open(
        self, residual: Tensor, kept: Tensor | None, occurrence: Occurrence
    ) -> tuple[Tensor, Tensor | None]:
        assert kept is not None
        return residual + self.weight * kept, kept

    def close(
        self, residual: Tensor, kept: Tensor | None, occurrence: Occurrence
    ) -> tuple[Tensor, Losses | None]:
        return residual, {"size": self.penalty * residual.square().mean()}

    def draw(self, name: str, draws: Draws) -> np.ndarray:
        return np.full(self.weight.shape, 0.3)
