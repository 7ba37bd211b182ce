"""The short causal convolution in front of a mixer, with its filters."""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mixerloop.draws import Draws
from mixerloop.model.sublayer import WEIGHT_STD
from mixerloop.ops.short_convolution import short_convolution


class ShortConvolution(nn.Module):
    """A filter for each channel over the last `width` tokens, then SiLU, in float32 or wider."""

    def __init__(self, channels: int, width: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, width))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def forward(
        self,
        x: Float[Tensor, "batch seq channels"],
        history: Float[Tensor, "batch history channels"] | None = None,
    ) -> tuple[Float[Tensor, "batch seq channels"], Float[Tensor, "batch history channels"]]:
        """The convolved tokens, and the tokens that the next call needs."""
        output, history = short_convolution(x=x, weight=self.weight, history=history)
        if self.bias is not None:
            output = output + self.bias
        return F.silu(output.to(torch.promote_types(output.dtype, torch.float32))), history

    def initial_history(self, batch: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Zeros: there are no tokens before the first."""
        channels, width = self.weight.shape
        return torch.zeros(batch, width - 1, channels, dtype=dtype, device=device)

    def draw(self, name: str, draws: Draws) -> np.ndarray:
        """Filters are drawn like any matrix."""
        if name == "bias":
            return np.zeros(len(self.weight))
        return WEIGHT_STD * draws.normals(self.weight.numel()).reshape(self.weight.shape)
