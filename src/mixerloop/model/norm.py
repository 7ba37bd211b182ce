"""Root-mean-square normalisation, in float32 whatever comes in."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Scale the last dimension to unit mean square, then by a learned weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """The result is float32, or float64 for a float64 input."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
