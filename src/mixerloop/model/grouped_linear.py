"""A matrix for each of several groups of rows."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mixerloop.ops.grouped_products import grouped_products


class GroupedLinear(nn.Module):
    """Multiply the rows of group g by matrix g; the rows of a group stand together."""

    def __init__(self, num_groups: int, d_in: int, d_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_groups, d_out, d_in))

    def forward(
        self, x: Float[Tensor, "rows d_in"], ends: Int[Tensor, " groups"]
    ) -> Float[Tensor, "rows d_out"]:
        """`ends` has the number of rows up to the end of each group."""
        return grouped_products(x=x, weight=self.weight.to(x.dtype), ends=ends)
