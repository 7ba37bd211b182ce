"""A linear layer: x weight^T + bias. A few rows, as in decoding, have a kernel of their own.

A product with a single row reads every weight once and computes little: memory sets the pace. The
general product of torch reads at a third of that pace on some processors (docs/log.md). Calling the
kernel takes 7 microseconds, in which torch finishes the product of a small matrix.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mixerloop.config import Form
from mixerloop.ops import native_library

MOST_ROWS = 4
"""Rows up to which the kernel is used; with more rows torch's product catches up."""
LEAST_WEIGHTS = 2**16
"""The size of a weight from which the kernel is used; torch is faster with smaller weights."""
ROW_TYPES = (torch.float32, torch.float64)


def linear(
    x: Float[Tensor, "*batch d_input"],
    weight: Float[Tensor, "d_output d_input"],
    bias: Float[Tensor, " d_output"] | None = None,
    *,
    form: Form,
) -> Float[Tensor, "*batch d_output"]:
    """The product; the kernel computes a few rows where neither autograd nor autocast is active."""
    if form == "native" and _fits_kernel(x, weight, bias):
        return _row_product(x, weight, bias)
    return F.linear(x, weight, bias)


def _fits_kernel(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernel can read these tensors, and is faster; torch takes all others."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if not native_library.goes_past_dispatcher(*tensors):  # before a tracer sees a shape compared
        return False
    return (
        weight.numel() >= LEAST_WEIGHTS
        and weight.ndim == 2
        and x.dtype in ROW_TYPES
        and all(tensor.dtype == x.dtype for tensor in tensors)
        and not torch.is_autocast_enabled("cpu")
        and 0 < x.numel() <= MOST_ROWS * x.shape[-1]
        and x.shape[-1] == weight.shape[1]
        and weight.is_contiguous()
        and (bias is None or bias.shape == weight.shape[:1])
    )


def _row_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    d_output, d_input = weight.shape
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
