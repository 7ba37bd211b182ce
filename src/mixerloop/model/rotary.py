"""Rotary positions: pairs of channels turn by an angle that grows with the position."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mixerloop import draws as exact
from mixerloop.draws import Draws
from mixerloop.kinds.mixers import RotaryPairs


class Rotary(nn.Module):
    """Pair i of a head turns by position * base^(-2i / width)."""

    def __init__(self, width: int, *, base: float, pairs: RotaryPairs) -> None:
        super().__init__()
        self.base, self.pairs = base, pairs
        self.register_buffer("frequencies", torch.empty(width // 2), persistent=False)

    def forward(
        self,
        query: Float[Tensor, "batch seq heads width"],
        key: Float[Tensor, "batch seq kv_heads width"],
        positions: Int[Tensor, "rows seq"],
    ) -> tuple[Float[Tensor, "batch seq heads width"], Float[Tensor, "batch seq kv_heads width"]]:
        """Turn queries and keys in float32 or wider; `positions` has a row for each, or one row."""
        frequencies = self.get_buffer("frequencies")
        angles = (positions.to(frequencies.dtype)[..., None] * frequencies)[:, :, None]
        cos, sin = angles.cos(), angles.sin()  # [rows, seq, 1, width / 2]
        return self._turned(query, cos, sin), self._turned(key, cos, sin)

    def draw(self, name: str, draws: Draws) -> np.ndarray:
        """Frequencies fall from 1 to almost 1 / base."""
        num = len(self.get_buffer("frequencies"))
        return exact.exp(-exact.log(np.array(self.base)) * np.arange(num) / num)

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.pairs == "half":
            first, second = x.chunk(2, dim=-1)
        else:
            first, second = x[..., ::2], x[..., 1::2]
        turned = (first * cos - second * sin, second * cos + first * sin)
        if self.pairs == "half":
            return torch.cat(turned, dim=-1)
        return torch.stack(turned, dim=-1).flatten(-2)


def positions_after(
    num_tokens: Int[Tensor, " batch"] | None, seq: int, device: torch.device
) -> Int[Tensor, "rows seq"]:
    """The positions of `seq` tokens after so many others in each row; one row for new sequences."""
    positions = torch.arange(seq, device=device)[None]
    return positions if num_tokens is None else num_tokens[:, None] + positions
