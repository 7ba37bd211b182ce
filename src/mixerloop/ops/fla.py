"""The rules of flash-linear-attention, for GPUs.

Two Triton kernels of each member are used: the chunked kernel, which has a backward, and the
recurrent kernel for short sequences without gradients, as in decoding. The caller normalises and
scales. There are gradients and no other derivatives. There is no kernel for an erase key that is
not the token's own key times a number.
"""

import importlib
import importlib.util
import os
import warnings
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mixerloop.ops.derivatives import GradientOnly

LONGEST_RECURRENT = 64  # tokens, a chunk of the chunked kernel


def is_installed() -> bool:
    """Whether flash-linear-attention and Triton are here."""
    return all(importlib.util.find_spec(name) is not None for name in ("fla", "triton"))


def is_interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on any machine and slowly."""
    return os.environ.get("TRITON_INTERPRET") == "1"


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
    if erase_key is not None:
        raise ValueError("form fla has no kernel for erase keys; choose torch")
    if log_decay is None:
        log_decay = initial_state.new_zeros(key.shape[:3])
    return _run(
        "simple_gla" if log_decay.ndim == 3 else "gla",
        GradientOnly("linear_attention", "fla", instead="form torch or definition"),
        q=query,
        k=key,
        v=value,
        g=log_decay,
        initial_state=initial_state,
    )


def _run(member: str, derivatives: GradientOnly, **inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Run a kernel of a member of the family; the names of inputs are those of its arguments."""
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
