"""A short causal convolution with a filter per channel, which can resume from a history."""

import torch
from jaxtyping import Float
from torch import Tensor


def short_convolution(
    *,
    x: Float[Tensor, "batch seq channels"],
    weight: Float[Tensor, "channels width"],
    history: Float[Tensor, "batch width-1 channels"] | None = None,
) -> tuple[Float[Tensor, "batch seq channels"], Float[Tensor, "batch width-1 channels"]]:
    """Each token's own channel and those of the `width - 1` earlier tokens, weighted and summed.

    `history` holds the tokens before the first token, zeros at a sequence's start; the history for
    the next call comes back beside the output. The last column of `weight` is the token's own.
    """
    batch, seq, channels = x.shape
    width = weight.shape[1]
    if history is None:
        history = x.new_zeros(batch, width - 1, channels)
    seen = torch.cat([history, x], dim=1)
    output = seen[:, width - 1 :] * weight[:, -1]
    for back in range(1, width):
        output = output + seen[:, width - 1 - back : width - 1 - back + seq] * weight[:, -1 - back]
    return output, seen[:, seq:].clone()
