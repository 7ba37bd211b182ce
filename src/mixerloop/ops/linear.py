"""A linear layer: x weight^T + bias. A few rows, as in decoding, have a kernel of their own.

A product with a single row reads every weight once and computes little: memory sets the pace. The
general product of torch reads at a third of that pace on some processors (docs/log.md).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mixerloop.config import Form
from mixerloop.ops import native_library

MOST_ROWS = 4
"""Rows up to which the kernel is used; with more rows torch's product catches up."""
ROW_TYPES = (torch.float32, torch.float64)


def linear(
    x: Float[Tensor, "*batch d_input"],
    weight: Float[Tensor, "d_output d_input"],
    bias: Float[Tensor, " d_output"] | None = None,
    *,
    form: Form,
) -> Float[Tensor, "*batch d_output"]:
    """The product; the kernel computes a few rows where neither autograd nor autocast is active."""
    weights = (weight,) if bias is None else (weight, bias)
    if (
        form == "native"
        and 0 < x.numel() <= MOST_ROWS * x.shape[-1]
        and x.dtype in ROW_TYPES
        and all(one.dtype == x.dtype for one in weights)
        and not torch.is_autocast_enabled("cpu")
        and native_library.goes_past_dispatcher(x, *weights)
    ):
        return _row_product(x, weight, bias)
    return F.linear(x, weight, bias)


def _row_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    d_output, d_input = weight.shape
    if x.shape[-1] != d_input:
        raise ValueError(f"a weight of {tuple(weight.shape)} does not fit {tuple(x.shape)}")
    if bias is not None and bias.shape != (d_output,):
        raise ValueError(f"a bias of {tuple(bias.shape)} does not fit {d_output} outputs")
    y = x.new_empty(*x.shape[:-1], d_output)
    reads = {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias})
    native_library.run(
        "row_product",
        x.dtype,
        *(x.numel() // d_input, d_input, d_output),
        reads=reads,
        writes={"y": y},
    )
    return y
