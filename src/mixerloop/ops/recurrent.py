"""The gated delta rule token by token: the definition every other form is tested against."""

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
