"""The rules of flash-linear-attention, for GPUs.

Two Triton kernels of each member are used: the chunked kernel, which has a backward, and the
recurrent kernel for short sequences without gradients, as in decoding. The caller normalises and
scales. There are gradients and no other derivatives. `missing_kernel` says for which members of the
family there is no kernel.

The kernels add up log decays in float32, so their errors grow with the sum of the decays in a
chunk; `docs/operator.md` has figures. A log decay of -inf would make differences of the sums NaN,
so decays are clamped where they forget everything.
"""

import importlib
import importlib.util
import os
import warnings
from functools import cache
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mixerloop.ops.derivatives import GradientOnly

LONGEST_RECURRENT = 64  # tokens, a chunk of the chunked kernel
WIDEST_ERASED_KEY = 256  # of a head, in the chunked kernels that erase
FORGETS = -104.0
"""A log decay whose exponential is 0 in float32; a clamped log decay has the gradient 0."""
Erase = Literal["none", "own", "given"]
"""How a member erases: not at all, with its own key times a write strength, with any erase key."""


def is_installed() -> bool:
    """Whether flash-linear-attention and Triton are here."""
    return all(importlib.util.find_spec(name) is not None for name in ("fla", "triton"))


def is_interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on any machine and slowly."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def missing_kernel(erase: Erase, d_key: int) -> str | None:
    """What the kernels lack for a member of the family, or None if they have it."""
    if erase == "given":
        return "form fla has no kernel for erase keys; choose torch"
    if erase == "own" and d_key > WIDEST_ERASED_KEY:
        return (
            f"form fla has no kernel for keys of {d_key} numbers in a head, only for up to "
            f"{WIDEST_ERASED_KEY}; choose torch"
        )
    return None


def fla_gated_delta_rule(
    *,
    query: Float[Tensor, "batch seq heads d_key"],
    key: Float[Tensor, "batch seq heads d_key"],
    value: Float[Tensor, "batch seq heads d_value"],
    log_decay: Float[Tensor, "batch seq heads *d_key"],
    write_strength: Float[Tensor, "batch seq heads"],
    initial_state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch seq heads d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """The rule in float32, on tokens in float32 or bfloat16; per channel it is KDA."""
    return _run(
        "gated_delta_rule" if log_decay.ndim == 3 else "kda",
        "own",
        GradientOnly("gated_delta_rule", "fla", instead="form torch or definition"),
        q=query,
        k=key,
        v=value,
        g=log_decay,
        beta=write_strength,
        initial_state=initial_state,
    )


def fla_linear_attention(
    *,
    query: Float[Tensor, "batch seq heads d_key"],
    key: Float[Tensor, "batch seq heads d_key"],
    value: Float[Tensor, "batch seq heads d_value"],
    log_decay: Float[Tensor, "batch seq heads *d_key"] | None,
    erase_key: Float[Tensor, "batch seq heads d_key"] | None,
    initial_state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch seq heads d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """The members that only add: simple GLA, or GLA where channels decay."""
    if log_decay is None:
        log_decay = initial_state.new_zeros(key.shape[:3])
    return _run(
        "simple_gla" if log_decay.ndim == 3 else "gla",
        "none" if erase_key is None else "given",
        GradientOnly("linear_attention", "fla", instead="form torch or definition"),
        q=query,
        k=key,
        v=value,
        g=log_decay,
        initial_state=initial_state,
    )


def _run(
    member: str, erase: Erase, derivatives: GradientOnly, **inputs: Tensor
) -> tuple[Tensor, Tensor]:
    """Run a kernel of a member of the family; the names of inputs are those of its arguments."""
    missing = missing_kernel(erase, inputs["k"].shape[-1])
    if missing is not None:
        raise ValueError(missing)
    if inputs["initial_state"].dtype == torch.float64:
        raise ValueError("form fla computes in float32; choose torch for float64")
    given = tuple(inputs.values())
    derivatives.check(*given)
    wants_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    is_chunked = wants_gradient or inputs["k"].shape[1] > LONGEST_RECURRENT
    cotangents: list[Tensor] = []
    if wants_gradient:
        given = _BeforeKernel.apply(derivatives, cotangents, *given)
    arguments = {name: tensor.contiguous() for name, tensor in zip(inputs, given, strict=True)}
    arguments["g"] = arguments["g"].clamp(min=FORGETS)
    if member == "gla" and not is_chunked:
        arguments["gk"] = arguments.pop("g")
    kernel = _kernel(member, "chunk" if is_chunked else "fused_recurrent")
    results = kernel(**arguments, scale=1.0, output_final_state=True)
    return _AfterKernel.apply(derivatives, cotangents, *results) if wants_gradient else results


class _BeforeKernel(torch.autograd.Function):
    """The inputs as they are. The gradients that the kernels return to them have no graph."""

    @staticmethod
    def forward(ctx, derivatives, cotangents, *inputs):
        ctx.derivatives, ctx.cotangents = derivatives, cotangents
        ctx.save_for_backward(*inputs)
        return tuple(x.view_as(x) for x in inputs)

    @staticmethod
    def backward(ctx, *gradients):
        computed_from = (*ctx.saved_tensors, *ctx.cotangents)
        ctx.cotangents.clear()
        return None, None, *ctx.derivatives.only_once(gradients, computed_from=computed_from)


class _AfterKernel(torch.autograd.Function):
    """The results as they are; their cotangents are left for `_BeforeKernel`."""

    @staticmethod
    def forward(ctx, derivatives, cotangents, *results):
        ctx.derivatives, ctx.cotangents = derivatives, cotangents
        return tuple(x.view_as(x) for x in results)

    @staticmethod
    def backward(ctx, *d_results):
        ctx.derivatives.check(*d_results)
        ctx.cotangents[:] = d_results
        return None, None, *d_results


@cache
def _kernel(member: str, sort: str) -> Any:
    with warnings.catch_warnings():  # fla warns on a machine without a GPU
        warnings.simplefilter("ignore")
        return getattr(importlib.import_module(f"fla.ops.{member}"), f"{sort}_{member}")
