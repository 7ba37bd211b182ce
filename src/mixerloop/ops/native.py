"""The gated delta rule in C++: the chunk equations with all data of a head in cache.

Two operators registered with torch, so that autograd, `torch.compile` and fake tensors know them.
The forward keeps the state of every 64th token; the backward runs the tokens between again. There
are gradients and no other derivatives.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mixerloop.ops import native_library
from mixerloop.ops.derivatives import GradientOnly
from mixerloop.ops.native_library import GROUP_TOKENS

_DERIVATIVES = GradientOnly("gated_delta_rule", "native", instead="form torch or definition")


def native_gated_delta_rule(
    *,
    query: Float[Tensor, "batch seq heads d_key"],
    key: Float[Tensor, "batch seq heads d_key"],
    value: Float[Tensor, "batch seq heads d_value"],
    log_decay: Float[Tensor, "batch seq heads"],
    write_strength: Float[Tensor, "batch seq heads"],
    initial_state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch seq heads d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """The rule in float32, or float64 when all inputs are float64.

    Query, key and value have the same type, which may be bfloat16; the rest is never narrower than
    float32. The output has the type of `value`.
    """
    inputs = (query, key, value, log_decay, write_strength, initial_state)
    _DERIVATIVES.check(*inputs)
    output, final_state, _ = _forward(*inputs, native_library.keeps_states(*inputs))
    return output, final_state


@torch.library.custom_op("mixerloop::gated_delta_rule", mutates_args=(), device_types="cpu")
def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    write_strength: Tensor,
    initial_state: Tensor,
    keep_states: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    output, final_state, states = _empty_results(key, value, initial_state, keep_states)
    tokens = (query, key, value, log_decay, write_strength)
    writes = {"output": output, "final_state": final_state}
    native_library.run(
        "rule",
        value.dtype,
        *_sizes(key, value),
        reads={**_named(tokens), "initial_state": initial_state},
        writes=writes | ({"states": states} if keep_states else {}),
    )
    return output, final_state, states


@_forward.register_fake
def _(query, key, value, log_decay, write_strength, initial_state, keep_states):
    return _empty_results(key, value, initial_state, keep_states)


@torch.library.custom_op(
    "mixerloop::gated_delta_rule_backward", mutates_args=(), device_types="cpu"
)
def _backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    write_strength: Tensor,
    states: Tensor,
    d_output: Tensor,
    d_final_state: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    assert states.shape[2] == _num_groups(key)
    results = _empty_gradients(query, key, value, log_decay, write_strength, d_final_state)
    tokens = (query, key, value, log_decay, write_strength)
    *d_tokens, d_initial_state = results
    native_library.run(
        "rule",
        value.dtype,
        *_sizes(key, value),
        backward=True,
        reads={
            **_named(tokens),
            "states": states,
            "d_output": d_output,
            "d_final_state": d_final_state,
        },
        writes={**_named(d_tokens, "d_"), "d_initial_state": d_initial_state},
    )
    return results


@_backward.register_fake
def _(query, key, value, log_decay, write_strength, states, d_output, d_final_state):
    return _empty_gradients(query, key, value, log_decay, write_strength, d_final_state)


def _keep(ctx, inputs, output) -> None:
    *tokens, _, _ = inputs
    ctx.save_for_backward(*tokens, output[2])


def _gradients(ctx, d_output, d_final_state, _d_states):
    _DERIVATIVES.check(d_output, d_final_state)
    gradients = _backward(*ctx.saved_tensors, d_output, d_final_state)
    return *gradients, None


_forward.register_autograd(_gradients, setup_context=_keep)
_backward.register_autograd(_DERIVATIVES.refuse_second)


def _named(tokens: Sequence[Tensor], prefix: str = "") -> dict[str, Tensor]:
    names = ("query", "key", "value", "log_decay", "write_strength")
    return {prefix + name: tensor for name, tensor in zip(names, tokens, strict=True)}


def _sizes(key: Tensor, value: Tensor) -> tuple[int, int, int, int, int]:
    batch, seq, heads, d_key = key.shape
    return batch, seq, heads, d_key, value.shape[-1]


def _num_groups(key: Tensor) -> int:
    return -(-key.shape[1] // GROUP_TOKENS)


def _empty_results(
    key: Tensor, value: Tensor, initial_state: Tensor, keep_states: bool
) -> tuple[Tensor, Tensor, Tensor]:
    batch, _, heads, d_key, d_value = _sizes(key, value)
    groups = _num_groups(key) if keep_states else 0
    return (
        _empty(value),
        _empty(initial_state),
        initial_state.new_empty(batch, heads, groups, d_key, d_value),
    )


def _empty_gradients(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    query, key, value, log_decay, write_strength, state = map(_empty, tensors)
    return query, key, value, log_decay, write_strength, state


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)
