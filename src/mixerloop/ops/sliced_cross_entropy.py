"""Head and cross-entropy together, a slice of tokens at a time, so that all logits never exist.

The gradient of a slice's loss needs its logits, and they are at hand while the loss is computed; so
the forward works out the gradients too, and the backward only scales them. What is kept is the size
of the inputs: for 4,096 tokens and a vocabulary of 32,000 in float32, 500 MiB never appear.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

NOT_SCORED = -100  # a label without a target, as everywhere in torch
SLICE_TOKENS = 512


def sliced_cross_entropy(
    *,
    x: Float[Tensor, "tokens d_model"],
    weight: Float[Tensor, "vocab d_model"],
    labels: Int[Tensor, " tokens"],
) -> Float[Tensor, ""]:
    """The sum of -log softmax(x weight^T)[label] over the tokens that have a label.

    Products are computed in the autocast type where autocast is on; everything else, and the sums,
    in float32 or wider.
    """
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x {tuple(x.shape)} and weight {tuple(weight.shape)} do not fit")
    if labels.shape != x.shape[:1]:
        raise ValueError(f"labels must have the shape ({len(x)},), got {tuple(labels.shape)}")
    device = x.device.type
    product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    with torch.autocast(device, enabled=False):
        return _SlicedCrossEntropy.apply(x, weight, labels, product)  # pyright: ignore


class _SlicedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, labels, product):
        wants_x, wants_weight = ctx.needs_input_grad[:2]
        wide = torch.promote_types(x.dtype, torch.float32)
        d_x = torch.empty_like(x) if wants_x else None
        d_weight = torch.zeros_like(weight, dtype=wide) if wants_weight else None
        total = x.new_zeros((), dtype=wide)
        head = weight.to(product)
        for at in range(0, len(x), SLICE_TOKENS):
            here = slice(at, at + SLICE_TOKENS)
            tokens, targets = x[here].to(product), labels[here]
            scored = targets != NOT_SCORED
            logits = (tokens @ head.T).to(wide)
            log_z = logits.logsumexp(-1)
            rows = torch.arange(len(targets), device=targets.device)
            places = targets.clamp_min(0)
            total += ((log_z - logits[rows, places]) * scored).sum()
            if d_x is None and d_weight is None:
                continue
            d_logits = logits.sub_(log_z[:, None]).exp_()  # the probabilities, in their place
            d_logits[rows, places] -= 1
            d_logits = (d_logits * scored[:, None]).to(product)
            if d_x is not None:
                d_x[here] = d_logits @ head
            if d_weight is not None:
                d_weight += (d_logits.T @ tokens).to(wide)
        ctx.save_for_backward(d_x, d_weight)
        ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, *d_results):  # pyright: ignore[reportIncompatibleMethodOverride]
        (d_total,) = d_results
        d_x, d_weight = ctx.saved_tensors
        return (
            None if d_x is None else d_x * d_total,
            None if d_weight is None else (d_weight * d_total).to(ctx.weight_dtype),
            None,
            None,
        )
