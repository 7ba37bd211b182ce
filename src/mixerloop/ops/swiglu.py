"""SwiGLU: silu(gate) * up, of the two halves of a projection."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mixerloop.config import Form
from mixerloop.ops import native_library
from mixerloop.ops.derivatives import GradientOnly

_DERIVATIVES = GradientOnly("swiglu", "native", instead="form torch")


def swiglu(
    gate_up: Float[Tensor, "*batch gate_and_up"], *, form: Form
) -> Float[Tensor, "*batch gate_and_up//2"]:
    """The first half through SiLU, times the second."""
    if gate_up.shape[-1] % 2:
        raise ValueError(f"gate and up must be of one width, got {gate_up.shape[-1]} for both")
    if form == "native" and gate_up.dtype in native_library.TYPES:
        if native_library.goes_past_dispatcher(gate_up):
            return _run_forward(gate_up)
        _DERIVATIVES.check(gate_up)
        return _forward(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def _run_forward(gate_up: Tensor) -> Tensor:
    output = _half(gate_up)
    native_library.run(
        "swiglu",
        gate_up.dtype,
        *_sizes(gate_up),
        reads={"gate_up": gate_up},
        writes={"output": output},
    )
    return output


_forward = torch.library.custom_op(
    "mixerloop::swiglu", _run_forward, mutates_args=(), device_types="cpu"
)


@_forward.register_fake
def _(gate_up):
    return _half(gate_up)


@torch.library.custom_op("mixerloop::swiglu_backward", mutates_args=(), device_types="cpu")
def _backward(gate_up: Tensor, d_output: Tensor) -> Tensor:
    d_gate_up = torch.empty_like(gate_up, memory_format=torch.contiguous_format)
    native_library.run(
        "swiglu",
        gate_up.dtype,
        *_sizes(gate_up),
        backward=True,
        reads={"gate_up": gate_up, "d_output": d_output},
        writes={"d_gate_up": d_gate_up},
    )
    return d_gate_up


@_backward.register_fake
def _(gate_up, d_output):
    return torch.empty_like(gate_up, memory_format=torch.contiguous_format)


def _keep(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx, d_output):
    _DERIVATIVES.check(d_output)
    return _backward(*ctx.saved_tensors, d_output)


_forward.register_autograd(_gradients, setup_context=_keep)
_backward.register_autograd(_DERIVATIVES.refuse_second)


def _half(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty(*gate_up.shape[:-1], gate_up.shape[-1] // 2)


def _sizes(gate_up: Tensor) -> tuple[int, int]:
    width = gate_up.shape[-1] // 2
    return gate_up.numel() // (2 * width), width
