"""The whole of a Gated DeltaNet mixer between its projections, in C++.

Saved for the backward are the inputs and the state of every 64th token; the rest is run again.
There are gradients and no other derivatives.
"""

from functools import reduce

import torch
from torch import Tensor

from mixerloop.ops import native_library
from mixerloop.ops.derivatives import GradientOnly, refuse_batches
from mixerloop.ops.native_library import GROUP_TOKENS

_DERIVATIVES = GradientOnly("gated_delta_mixing", "native", instead="form torch or definition")
LARGEST_WIDTH = 17  # of the convolution: no token sees further back than the chunk before its own


def native_gated_delta_mixing(
    qkv: Tensor,
    gate: Tensor,
    decay: Tensor,
    write: Tensor,
    conv_weight: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    *,
    norm_eps: float,
    unit_eps: float,
    memory: Tensor | None,
    conv_history: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The native form of `gated_delta_mixing`; the output has the type of the tokens."""
    batch, seq, channels = qkv.shape
    heads, d_head, width = a_log.shape[0], norm_weight.shape[0], conv_weight.shape[1]
    if memory is None:
        memory = qkv.new_zeros(batch, heads, d_head, d_head, dtype=a_log.dtype)
    if conv_history is None:
        conv_history = qkv.new_zeros(batch, width - 1, channels)
    tokens = (qkv, gate, decay, write)
    others = (conv_weight, a_log, dt_bias, norm_weight, conv_history, memory)
    inputs = _of_one_type(tokens, others)
    if native_library.goes_past_dispatcher(*inputs):
        output, final_memory, _ = _run_forward(
            *inputs, norm_eps=norm_eps, unit_eps=unit_eps, keep_states=False
        )
    else:
        _DERIVATIVES.check(*inputs)
        keep_states = native_library.keeps_states(*inputs)
        output, final_memory, _ = _forward(*inputs, norm_eps, unit_eps, keep_states)
    recent = qkv[:, max(0, seq - (width - 1)) :]
    kept = conv_history[:, recent.shape[1] :]
    history = torch.cat([kept, recent], dim=1)
    return output, final_memory, history


def _run_forward(
    qkv: Tensor,
    gate: Tensor,
    decay: Tensor,
    write: Tensor,
    conv_weight: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    history: Tensor,
    initial_state: Tensor,
    norm_eps: float,
    unit_eps: float,
    keep_states: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    output, final_state, states = _empty_results(gate, initial_state, keep_states)
    inputs = (qkv, gate, decay, write, conv_weight, a_log, dt_bias, norm_weight, history)
    writes = {"output": output, "final_state": final_state}
    native_library.run(
        "mixing",
        qkv.dtype,
        *_sizes(qkv, conv_weight, initial_state, norm_eps, unit_eps),
        reads={**_named(inputs), "initial_state": initial_state},
        writes=writes | ({"states": states} if keep_states else {}),
    )
    return output, final_state, states


_forward = torch.library.custom_op(
    "mixerloop::gated_delta_mixing", _run_forward, mutates_args=(), device_types="cpu"
)


@_forward.register_fake
def _(_qkv, gate, *others):
    *_, initial_state, _norm_eps, _unit_eps, keep_states = others
    return _empty_results(gate, initial_state, keep_states)


@torch.library.custom_op(
    "mixerloop::gated_delta_mixing_backward", mutates_args=(), device_types="cpu"
)
def _backward(
    qkv: Tensor,
    gate: Tensor,
    decay: Tensor,
    write: Tensor,
    conv_weight: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    history: Tensor,
    states: Tensor,
    d_output: Tensor,
    d_final_state: Tensor,
    norm_eps: float,
    unit_eps: float,
) -> list[Tensor]:
    """Gradients of weights are per sequence, that of the norm also per head; not yet summed."""
    assert states.shape[2] == _num_groups(gate)
    gradients = _empty_gradients(
        qkv, gate, decay, write, conv_weight, a_log, norm_weight, history, d_final_state
    )
    inputs = (qkv, gate, decay, write, conv_weight, a_log, dt_bias, norm_weight, history)
    native_library.run(
        "mixing",
        qkv.dtype,
        *_sizes(qkv, conv_weight, d_final_state, norm_eps, unit_eps),
        backward=True,
        reads={
            **_named(inputs),
            "states": states,
            "d_output": d_output,
            "d_final_state": d_final_state,
        },
        writes=gradients,
    )
    return list(gradients.values())


@_backward.register_fake
def _(qkv, gate, decay, write, conv_weight, a_log, _dt_bias, norm_weight, history, *others):
    _states, _d_output, d_final_state, _norm_eps, _unit_eps = others
    gradients = _empty_gradients(
        qkv, gate, decay, write, conv_weight, a_log, norm_weight, history, d_final_state
    )
    return list(gradients.values())


def _keep(ctx, inputs, output) -> None:
    *tensors, _, norm_eps, unit_eps, _ = inputs
    ctx.save_for_backward(*tensors, output[2])
    ctx.eps = norm_eps, unit_eps


def _gradients(ctx, d_output, d_final_state, _d_states):
    _DERIVATIVES.check(d_output, d_final_state)
    refuse_batches("gated_delta_mixing", "native", d_output, d_final_state)
    qkv, gate, decay, write, conv, a_log, dt_bias, norm, history, state = _backward(
        *ctx.saved_tensors, d_output, d_final_state, *ctx.eps
    )
    weights = (conv.sum(0), a_log.sum(0), dt_bias.sum(0), norm.sum((0, 1)))
    return qkv, gate, decay, write, *weights, history, state, None, None, None


_forward.register_autograd(_gradients, setup_context=_keep)
_backward.register_autograd(_DERIVATIVES.refuse_second)


def _named(inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    names = (
        *("qkv", "gate", "decay", "write", "conv_weight", "A_log", "dt_bias", "norm_weight"),
        "history",
    )
    return dict(zip(names, inputs, strict=True))


def _sizes(
    qkv: Tensor, conv_weight: Tensor, state: Tensor, norm_eps: float, unit_eps: float
) -> tuple[float, ...]:
    batch, heads, d_head, _ = state.shape
    sizes = (batch, qkv.shape[1], heads, d_head, conv_weight.shape[1])
    return *sizes, norm_eps, unit_eps, d_head**-0.5


def _num_groups(gate: Tensor) -> int:
    return -(-gate.shape[1] // GROUP_TOKENS)


def _empty_results(
    gate: Tensor, initial_state: Tensor, keep_states: bool
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, d_head, _ = initial_state.shape
    groups = _num_groups(gate) if keep_states else 0
    states = initial_state.new_empty(batch, heads, groups, d_head, d_head)
    return _empty(gate), _empty(initial_state), states


def _empty_gradients(
    qkv: Tensor,
    gate: Tensor,
    decay: Tensor,
    write: Tensor,
    conv_weight: Tensor,
    a_log: Tensor,
    norm_weight: Tensor,
    history: Tensor,
    state: Tensor,
) -> dict[str, Tensor]:
    batch, heads, d_head, _ = state.shape
    return {
        "d_qkv": _empty(qkv),
        "d_gate": _empty(gate),
        "d_decay": _empty(decay),
        "d_write": _empty(write),
        "d_conv_weight": conv_weight.new_empty(batch, *conv_weight.shape),
        "d_A_log": a_log.new_empty(batch, heads),
        "d_dt_bias": a_log.new_empty(batch, heads),
        "d_norm_weight": norm_weight.new_empty(batch, heads, d_head),
        "d_history": _empty(history),
        "d_initial_state": _empty(state),
    }


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _of_one_type(tokens: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Tokens in bfloat16 or as wide as the others; the others in float32 or float64."""
    given = {tensor.dtype for tensor in (*tokens, *others)}
    if given in ({torch.float32}, {torch.float64}):
        return *tokens, *others
    wide = reduce(torch.promote_types, given, torch.float32)
    narrow = {tensor.dtype for tensor in tokens} == {torch.bfloat16} and wide == torch.float32
    token_dtype = torch.bfloat16 if narrow else wide
    return (
        *(tensor.to(token_dtype) for tensor in tokens),
        *(tensor.to(wide) for tensor in others),
    )
