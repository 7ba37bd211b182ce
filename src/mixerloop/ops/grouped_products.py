"""Products of groups of rows, each group with a matrix of its own.

Torch has this product for float32 and bfloat16, and for widths of whole 16 bytes. For others, such
as float64, groups are multiplied one after another; `has_grouped_form` says which.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

ALIGNED_BYTES = 16  # of a row, in torch's grouped product


def grouped_products(
    *,
    x: Float[Tensor, "rows d_in"],
    weight: Float[Tensor, "groups d_out d_in"],
    ends: Int[Tensor, " groups"],
) -> Float[Tensor, "rows d_out"]:
    """The rows up to `ends[0]` times matrix 0, those up to `ends[1]` times matrix 1, and so on."""
    if has_grouped_form(weight):
        return F.grouped_mm(x, weight.mT, offs=ends.to(torch.int32))
    parts = x.tensor_split(ends[:-1].cpu())
    products = [F.linear(part, matrix) for part, matrix in zip(parts, weight, strict=True)]
    return torch.cat(products)


def has_grouped_form(weight: Float[Tensor, "groups d_out d_in"]) -> bool:
    """Whether torch's grouped product takes matrices of this type and these widths."""
    if weight.dtype not in (torch.float32, torch.bfloat16):
        return False
    return all(width * weight.itemsize % ALIGNED_BYTES == 0 for width in weight.shape[1:])
