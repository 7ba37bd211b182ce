"""Root-mean-square normalisation, in float32 whatever comes in."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mixerloop.config import Form
from mixerloop.draws import Draws
from mixerloop.ops.rms_norm import rms_norm


class RMSNorm(nn.Module):
    """Scale the last dimension, or each of its groups, to unit mean square, then by a weight."""

    def __init__(self, width: int, eps: float, *, form: Form, num_groups: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps
        self.num_groups = num_groups
        self.form: Form = form

    def forward(
        self, x: Float[Tensor, "*batch width"], dtype: torch.dtype | None = None
    ) -> Float[Tensor, "*batch width"]:
        """The result is float32, or float64 for a float64 input, unless a `dtype` is asked for."""
        if self.num_groups == 1:
            return rms_norm(x, self.weight, eps=self.eps, form=self.form, dtype=dtype)
        groups = zip(
            *(whole.chunk(self.num_groups, dim=-1) for whole in (x, self.weight)), strict=True
        )
        normed = [rms_norm(*group, eps=self.eps, form=self.form, dtype=dtype) for group in groups]
        return torch.cat(normed, dim=-1)

    def draw(self, name: str, draws: Draws) -> np.ndarray:
        """No channel is preferred at the start."""
        return np.ones(self.weight.shape)
