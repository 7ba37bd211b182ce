"""Everything between the projections of a Gated DeltaNet mixer, as a single operator.

Per head: a short convolution and SiLU on query, key and value; query and key scaled to unit length;
the two gates; the gated delta rule; the gated output norm. The torch form is the definition; the
native form reads and writes each token once.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mixerloop.config import Form
from mixerloop.ops.gated_delta_rule import gated_delta_rule
from mixerloop.ops.native_mixing import LARGEST_WIDTH, native_gated_delta_mixing
from mixerloop.ops.short_convolution import short_convolution

UNIT_NORM_EPS = 1e-6  # under the root, as in flash-linear-attention


class Projected(NamedTuple):
    """Outputs of the projections of a mixer."""

    qkv: Float[Tensor, "batch seq channels"]
    gate: Float[Tensor, "batch seq values"]  # heads * d_value
    decay: Float[Tensor, "batch seq heads"]
    write: Float[Tensor, "batch seq heads"]


class MixingWeights(NamedTuple):
    """Parameters of a mixer besides its projections."""

    conv: Float[Tensor, "channels width"]
    A_log: Float[Tensor, " heads"]
    dt_bias: Float[Tensor, " heads"]
    norm: Float[Tensor, " d_value"]

    @property
    def d_key(self) -> int:
        """Width of a head's keys: half of its channels that are not values."""
        return (len(self.conv) // len(self.A_log) - len(self.norm)) // 2


class RuleInputs(NamedTuple):
    """Arguments of the rule, in float32 or wider."""

    query: Float[Tensor, "batch seq heads d_key"]
    key: Float[Tensor, "batch seq heads d_key"]
    value: Float[Tensor, "batch seq heads d_value"]
    log_decay: Float[Tensor, "batch seq heads"]
    write_strength: Float[Tensor, "batch seq heads"]


def gated_delta_mixing(
    tokens: Projected,
    weights: MixingWeights,
    *,
    norm_eps: float,
    form: Form,
    largest_write: float = 1.0,
    memory: Float[Tensor, "batch heads d_key d_value"] | None = None,
    conv_history: Float[Tensor, "batch history channels"] | None = None,
    watch: Callable[[str, Tensor], Tensor] | None = None,
) -> tuple[
    Float[Tensor, "batch seq values"],
    Float[Tensor, "batch heads d_key d_value"],
    Float[Tensor, "batch history channels"],  # the last width - 1 tokens
]:
    """Mix a sequence; returns the mixed tokens and the memory and history to continue from.

    The fused kernel needs keys and values of equal width and write strengths up to 1. Otherwise
    the native form runs the kernel of the rule, and torch around the kernel.

    `watch` is given the rule's inputs and its output, `read`, by name, and returns what takes their
    place. The fused kernel has none of them.
    """
    _check(tokens, weights, memory=memory, conv_history=conv_history)
    if is_fused(weights, largest_write=largest_write, form=form):
        return native_gated_delta_mixing(
            *tokens,
            *weights,
            norm_eps=norm_eps,
            unit_eps=UNIT_NORM_EPS,
            memory=memory,
            conv_history=conv_history,
        )
    qkv, conv_history = short_convolution(x=tokens.qkv, weight=weights.conv, history=conv_history)
    inputs = rule_inputs(tokens, qkv, weights, largest_write=largest_write)
    if form == "fla":  # its kernels are made for tokens as narrow as the projections'
        narrow = tokens.qkv.dtype
        inputs = inputs._replace(
            query=inputs.query.to(narrow), key=inputs.key.to(narrow), value=inputs.value.to(narrow)
        )
    if watch is not None:
        inputs = RuleInputs(*map(watch, inputs._fields, inputs))
    output, memory = gated_delta_rule(
        **inputs._asdict(),
        initial_state=memory,
        form=form,
    )
    if watch is not None:
        output = watch("read", output)
    return gated_norm(output, tokens.gate, weights, norm_eps), memory, conv_history


def is_fused(weights: MixingWeights, *, largest_write: float, form: Form) -> bool:
    """Whether the fused kernel runs: its keys and values have one width, its writes are up to 1."""
    return (
        form == "native"
        and weights.conv.shape[1] <= LARGEST_WIDTH
        and weights.d_key == len(weights.norm)
        and largest_write == 1
    )


def mixing_without_context(
    tokens: Projected, weights: MixingWeights, *, norm_eps: float, largest_write: float = 1.0
) -> Float[Tensor, "batch seq values"]:
    """Each token writes to an empty memory and reads its own write: o = b (q . k) v."""
    inputs = rule_inputs(
        tokens, tokens.qkv * weights.conv[:, -1], weights, largest_write=largest_write
    )
    match = (inputs.query * inputs.key).sum(-1)
    output = (inputs.write_strength * match)[..., None] * inputs.value
    return gated_norm(output, tokens.gate, weights, norm_eps)


def rule_inputs(
    tokens: Projected, qkv: Tensor, weights: MixingWeights, *, largest_write: float = 1.0
) -> RuleInputs:
    """The arguments of the rule from convolved tokens."""
    wide = torch.promote_types(qkv.dtype, torch.float32)
    heads, d_key, d_value = len(weights.A_log), weights.d_key, len(weights.norm)
    sizes = [heads * d_key, heads * d_key, heads * d_value]
    query, key, value = (
        part.unflatten(-1, (heads, -1)) for part in F.silu(qkv.to(wide)).split(sizes, dim=-1)
    )
    write_strength = tokens.write.to(wide).sigmoid()
    if largest_write != 1:
        write_strength = largest_write * write_strength
    step = F.softplus(tokens.decay.to(wide) + weights.dt_bias)
    return RuleInputs(
        query=_unit(query) * d_key**-0.5,
        key=_unit(key),
        value=value,
        log_decay=-weights.A_log.exp() * step,
        write_strength=write_strength,
    )


def gated_norm(output: Tensor, gate: Tensor, weights: MixingWeights, norm_eps: float) -> Tensor:
    """Each head's output at unit mean square, weighted, behind its gate."""
    wide = output.to(torch.promote_types(output.dtype, torch.float32))
    normed = F.rms_norm(wide, weights.norm.shape, weights.norm, norm_eps)
    return normed.flatten(-2) * F.silu(gate)


def _check(
    tokens: Projected,
    weights: MixingWeights,
    *,
    memory: Tensor | None,
    conv_history: Tensor | None,
) -> None:
    """Reject tensors that do not fit together, by name; the native form trusts these sizes."""
    batch, seq, _ = tokens.gate.shape
    (heads,), (d_value,), width = weights.A_log.shape, weights.norm.shape, weights.conv.shape[1]
    channels = heads * (2 * weights.d_key + d_value)
    if seq == 0:
        raise ValueError("the sequence is empty")
    expected = {
        "qkv": (tokens.qkv, (batch, seq, channels)),
        "gate": (tokens.gate, (batch, seq, heads * d_value)),
        "decay": (tokens.decay, (batch, seq, heads)),
        "write": (tokens.write, (batch, seq, heads)),
        "conv": (weights.conv, (channels, width)),
        "dt_bias": (weights.dt_bias, (heads,)),
        "memory": (memory, (batch, heads, weights.d_key, d_value)),
        "conv_history": (conv_history, (batch, width - 1, channels)),
    }
    for name, (tensor, shape) in expected.items():
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} must have the shape {shape}, got {tuple(tensor.shape)}")


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_NORM_EPS)
