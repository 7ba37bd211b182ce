"""The gated delta rule of flash-linear-attention, for GPUs.

Two of its Triton kernels are used: the chunked kernel, which has a backward, and the recurrent
kernel for short sequences without gradients, as in decoding. The caller normalises and scales.
There are gradients and no other derivatives.
"""

import importlib.util
import os
import warnings
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mixerloop.ops.derivatives import GradientOnly

_DERIVATIVES = GradientOnly("gated_delta_rule", "fla", instead="form torch or definition")
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
    log_decay: Float[Tensor, "batch seq heads"],
    write_strength: Float[Tensor, "batch seq heads"],
    initial_state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch seq heads d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """The rule in float32, on tokens in float32 or bfloat16."""
    if initial_state.dtype == torch.float64:
        raise ValueError("form fla computes in float32; choose torch for float64")
    inputs = (query, key, value, log_decay, write_strength, initial_state)
    _DERIVATIVES.check(*inputs)
    wants_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    chunked, recurrent = _kernels()
    rule = chunked if wants_gradient or key.shape[1] > LONGEST_RECURRENT else recurrent
    cotangents: list[Tensor] = []
    if wants_gradient:
        inputs = _BeforeKernel.apply(cotangents, *inputs)
    query, key, value, log_decay, write_strength, initial_state = (x.contiguous() for x in inputs)
    results = rule(
        query,
        key,
        value,
        g=log_decay,
        beta=write_strength,
        scale=1.0,
        initial_state=initial_state,
        output_final_state=True,
    )
    return _AfterKernel.apply(cotangents, *results) if wants_gradient else results


class _BeforeKernel(torch.autograd.Function):
    """The inputs as they are. The gradients that the kernels return to them have no graph."""

    @staticmethod
    def forward(ctx, cotangents, *inputs):
        ctx.cotangents = cotangents
        ctx.save_for_backward(*inputs)
        return tuple(x.view_as(x) for x in inputs)

    @staticmethod
    def backward(ctx, *gradients):
        computed_from = (*ctx.saved_tensors, *ctx.cotangents)
        ctx.cotangents.clear()
        return None, *_DERIVATIVES.only_once(gradients, computed_from=computed_from)


class _AfterKernel(torch.autograd.Function):
    """The results as they are; their cotangents are left for `_BeforeKernel`."""

    @staticmethod
    def forward(ctx, cotangents, *results):
        ctx.cotangents = cotangents
        return tuple(x.view_as(x) for x in results)

    @staticmethod
    def backward(ctx, *d_results):
        _DERIVATIVES.check(*d_results)
        ctx.cotangents[:] = d_results
        return None, *d_results


@cache
def _kernels() -> tuple[Any, Any]:
    with warnings.catch_warnings():  # fla warns on a machine without a GPU
        warnings.simplefilter("ignore")
        from fla.ops.gated_delta_rule import (
            chunk_gated_delta_rule,
            fused_recurrent_gated_delta_rule,
        )
    return chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
