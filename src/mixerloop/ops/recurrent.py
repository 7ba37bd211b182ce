"""The rules token by token: the definitions that every other form is tested against."""

import torch
from jaxtyping import Float
from torch import Tensor


def recurrent_gated_delta_rule(
    *,
    query: Float[Tensor, "batch seq heads d_key"],
    key: Float[Tensor, "batch seq heads d_key"],
    value: Float[Tensor, "batch seq heads d_value"],
    log_decay: Float[Tensor, "batch seq heads"],
    write_strength: Float[Tensor, "batch seq heads"],
    initial_state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch seq heads d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """A step of the rule per token, differentiated by autograd."""
    state = initial_state
    outputs = []
    for t in range(query.shape[1]):
        state = state * log_decay[:, t, :, None, None].exp()
        stored = torch.einsum("bhkv,bhk->bhv", state, key[:, t])
        correction = write_strength[:, t, :, None] * (value[:, t] - stored)
        state = state + torch.einsum("bhk,bhv->bhkv", key[:, t], correction)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, query[:, t]))
    return torch.stack(outputs, dim=1), state


def recurrent_linear_attention(
    *,
    query: Float[Tensor, "batch seq heads d_key"],
    key: Float[Tensor, "batch seq heads d_key"],
    value: Float[Tensor, "batch seq heads d_value"],
    log_decay: Float[Tensor, "batch seq heads *d_key"] | None,
    erase_key: Float[Tensor, "batch seq heads d_key"] | None,
    initial_state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch seq heads d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """A step of the family's rule per token, differentiated by autograd."""
    state = initial_state
    outputs = []
    for t in range(query.shape[1]):
        if log_decay is not None:
            decay = log_decay[:, t].exp()
            state = state * (decay[..., None] if decay.ndim == 3 else decay[..., None, None])
        write = value[:, t]
        if erase_key is not None:
            write = write - torch.einsum("bhkv,bhk->bhv", state, erase_key[:, t])
        state = state + torch.einsum("bhk,bhv->bhkv", key[:, t], write)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, query[:, t]))
    return torch.stack(outputs, dim=1), state
