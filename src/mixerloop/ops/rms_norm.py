"""Root-mean-square normalisation: x / sqrt(mean(x^2) + eps) * weight, in float32 or wider."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mixerloop.config import Form
from mixerloop.ops import native_library
from mixerloop.ops.derivatives import GradientOnly

_DERIVATIVES = GradientOnly("rms_norm", "native", instead="form torch")


def rms_norm(
    x: Float[Tensor, "*batch width"],
    weight: Float[Tensor, " width"],
    *,
    eps: float,
    form: Form,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*batch width"]:
    """The last dimension at unit mean square, weighted; rounded to `dtype` at the end, if given."""
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"a weight of {tuple(weight.shape)} does not fit {tuple(x.shape)}")
    wide = torch.promote_types(x.dtype, torch.float32)
    dtype = wide if dtype is None else dtype
    x = x.to(wide)
    if form == "native" and wide == weight.dtype and dtype in (wide, torch.bfloat16):
        if native_library.goes_past_dispatcher(x, weight):
            return _run_forward(x, weight, eps, dtype)
        _DERIVATIVES.check(x, weight)
        return _forward(x, weight, eps, dtype)
    return F.rms_norm(x, weight.shape, weight, eps).to(dtype)


def _run_forward(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    y = _empty(x, dtype)
    native_library.run(
        "rms_norm", dtype, *_sizes(x), eps, reads={"x": x, "weight": weight}, writes={"y": y}
    )
    return y


_forward = torch.library.custom_op(
    "mixerloop::rms_norm", _run_forward, mutates_args=(), device_types="cpu"
)


@_forward.register_fake
def _(x, weight, eps, dtype):
    return _empty(x, dtype)


@torch.library.custom_op("mixerloop::rms_norm_backward", mutates_args=(), device_types="cpu")
def _backward(x: Tensor, weight: Tensor, d_y: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The gradient of the weight comes in parts, a part for each block of rows."""
    d_x, d_weight = _empty_gradients(x)
    native_library.run(
        "rms_norm",
        d_y.dtype,
        *_sizes(x),
        eps,
        backward=True,
        reads={"x": x, "weight": weight, "d_y": d_y},
        writes={"d_x": d_x, "d_weight": d_weight},
    )
    return d_x, d_weight


@_backward.register_fake
def _(x, weight, d_y, eps):
    return _empty_gradients(x)


def _keep(ctx, inputs, output) -> None:
    x, weight, ctx.eps, _ = inputs
    ctx.save_for_backward(x, weight)


def _gradients(ctx, d_y):
    _DERIVATIVES.check(d_y)
    d_x, d_weight = _backward(*ctx.saved_tensors, d_y, ctx.eps)
    return d_x, d_weight.sum(0), None, None


_forward.register_autograd(_gradients, setup_context=_keep)
_backward.register_autograd(_DERIVATIVES.refuse_second)


def _sizes(x: Tensor) -> tuple[int, int]:
    width = x.shape[-1]
    return x.numel() // width, width


def _empty(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def _empty_gradients(x: Tensor) -> tuple[Tensor, Tensor]:
    rows, width = _sizes(x)
    blocks = -(-rows // native_library.BLOCK_ROWS)
    return _empty(x, x.dtype), x.new_empty(blocks, width)
