"""Head and cross-entropy together, a slice of tokens at a time, so that all logits never exist.

The gradient of a slice's loss needs its logits, and they are at hand while the loss is computed; so
the forward works out the gradients too, and the backward only scales them. The saved tensors have
the size of the inputs: for 4,096 tokens and a vocabulary of 32,000, 500 MiB never appear.

The torch form has all derivatives: those besides the gradient go through autograd, slice by slice.
The native form has the gradient.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mixerloop.config import Form
from mixerloop.ops import derivatives, native_library
from mixerloop.ops.derivatives import GradientOnly
from mixerloop.ops.precision import product_dtype

_DERIVATIVES = GradientOnly("sliced_cross_entropy", "native", instead="form torch")
NOT_SCORED = -100  # a label without a target, as everywhere in torch
SLICE_TOKENS = 512


def sliced_cross_entropy(
    *,
    x: Float[Tensor, "tokens d_model"],
    weight: Float[Tensor, "vocab d_model"],
    labels: Int[Tensor, " tokens"],
    form: Form = "torch",
) -> Float[Tensor, ""]:
    """The sum of -log softmax(x weight^T)[label] over the tokens that have a label.

    Products are computed in the autocast type where autocast is on; everything else, and the sums,
    in float32 or wider.
    """
    _check(x, weight, labels)
    product = product_dtype(x)
    if form == "native":
        _DERIVATIVES.check(x, weight)
        if derivatives.numbers_are_hidden():
            raise ValueError(
                "sliced_cross_entropy: form native does not run inside vmap; use form torch"
            )
    with torch.autocast(x.device.type, enabled=False):
        if form != "native" and derivatives.transforms_are_active():
            return _by_autograd(x, weight, labels, product)
        return _SlicedCrossEntropy.apply(x, weight, labels, product, form, torch.is_grad_enabled())  # pyright: ignore


@torch.no_grad()
def token_losses(
    *,
    x: Float[Tensor, "tokens d_model"],
    weight: Float[Tensor, "vocab d_model"],
    labels: Int[Tensor, " tokens"],
    form: Form = "torch",
) -> tuple[Float[Tensor, " tokens"], Int[Tensor, " tokens"]]:
    """Each token's own loss, and the id of its largest logit; without gradients."""
    _check(x, weight, labels)
    if derivatives.are_transformed(x, weight) or derivatives.numbers_are_hidden():
        raise ValueError(
            "token_losses: no form has derivatives or runs inside vmap; use sliced_cross_entropy"
        )
    product = product_dtype(x)
    losses = x.new_empty(len(x), dtype=torch.promote_types(x.dtype, torch.float32))
    most_likely = labels.new_empty(len(x), dtype=torch.int64)
    with torch.autocast(x.device.type, enabled=False):
        head = weight.to(product)
        for at in range(0, len(x), SLICE_TOKENS):
            here = slice(at, at + SLICE_TOKENS)
            logits = x[here].to(product) @ head.T
            most_likely[here] = logits.argmax(-1)
            losses[here], _ = _losses(logits, labels[here], form, with_gradient=False)
    return losses, most_likely


def _check(x: Tensor, weight: Tensor, labels: Tensor) -> None:
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x {tuple(x.shape)} and weight {tuple(weight.shape)} do not fit")
    if labels.shape != x.shape[:1]:
        raise ValueError(f"labels must have the shape ({len(x)},), got {tuple(labels.shape)}")
    hidden = torch.compiler.is_compiling() or derivatives.numbers_are_hidden()
    if labels.device.type == "cpu" and not hidden:
        known = (labels == NOT_SCORED) | ((labels >= 0) & (labels < len(weight)))
        if not bool(known.all()):
            wrong = int(labels[~known][0])
            raise ValueError(f"label {wrong} is outside the vocabulary of {len(weight):,}")


class _SlicedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, labels, product, form, wants_gradients):
        wants_x, wants_weight = (wants_gradients and need for need in ctx.needs_input_grad[:2])
        wide = torch.promote_types(x.dtype, torch.float32)
        d_x = torch.empty_like(x) if wants_x else None
        d_weight = torch.zeros_like(weight, dtype=wide) if wants_weight else None
        total = x.new_zeros((), dtype=wide)
        head = weight.to(product)
        buffer = x.new_empty(min(SLICE_TOKENS, len(x)), len(weight), dtype=product)
        for at in range(0, len(x), SLICE_TOKENS):
            here = slice(at, at + SLICE_TOKENS)
            tokens, targets = x[here].to(product), labels[here]
            logits = torch.mm(tokens, head.T, out=buffer[: len(targets)])
            losses, d_logits = _losses(logits, targets, form, with_gradient=wants_x or wants_weight)
            total += losses.sum()
            if d_x is not None:
                d_x[here] = d_logits @ head
            if d_weight is None:
                continue
            if product == wide:
                d_weight.addmm_(d_logits.T, tokens)
            else:
                d_weight += d_logits.T @ tokens
        ctx.save_for_backward(x, weight, labels, d_x, d_weight)
        ctx.product, ctx.form = product, form
        return total

    @staticmethod
    def backward(ctx, *d_results):  # pyright: ignore[reportIncompatibleMethodOverride]
        (d_total,) = d_results
        x, weight, labels, d_x, d_weight = ctx.saved_tensors
        if ctx.form != "native" and derivatives.needs_more_than_gradients():

            def losses(x, weight):
                return (_by_autograd(x, weight, labels, ctx.product),)

            with torch.autocast(x.device.type, enabled=False):
                gradients = derivatives.gradients_through(losses, (x, weight), d_results)
            return *gradients, None, None, None, None
        _DERIVATIVES.check(d_total)
        gradients = (
            None if d_x is None else d_x * d_total,
            None if d_weight is None else (d_weight * d_total).to(weight.dtype),
        )
        gradients = _DERIVATIVES.only_once(gradients, computed_from=(x, weight))
        return *gradients, None, None, None, None


def _by_autograd(x: Tensor, weight: Tensor, labels: Tensor, product: torch.dtype) -> Tensor:
    """The same sum in operations that torch can differentiate in every way."""
    head = weight.to(product)
    sums = []
    for at in range(0, len(x), SLICE_TOKENS):
        here = slice(at, at + SLICE_TOKENS)
        losses, _ = _torch(x[here].to(product) @ head.T, labels[here], with_gradient=False)
        sums.append(losses.sum())
    return torch.stack(sums).sum()


def _losses(
    logits: Tensor, targets: Tensor, form: Form, *, with_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Each token's loss and, in place of the logits or new, their gradient if `with_gradient`."""
    if form == "native" and logits.dtype in native_library.TYPES:
        run = _run_native if native_library.goes_past_dispatcher(logits, targets) else _native
        return run(logits, targets.long(), with_gradient), logits
    return _torch(logits, targets, with_gradient=with_gradient)


def _torch(
    logits: Float[Tensor, "tokens vocab"], targets: Int[Tensor, " tokens"], *, with_gradient: bool
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, "tokens vocab"]]:
    """Each token's loss, and the gradient of its logits; a label that cannot be is no number."""
    scored = targets != NOT_SCORED
    impossible = scored & ((targets < 0) | (targets >= logits.shape[1]))
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_z = wide.logsumexp(-1)
    rows = torch.arange(len(targets), device=targets.device)
    places = targets.clamp(0, logits.shape[1] - 1)
    losses = (log_z - wide[rows, places]).masked_fill(~scored, 0).masked_fill(impossible, torch.nan)
    if not with_gradient:
        return losses, logits
    d_logits = wide.sub_(log_z[:, None]).exp_()  # the probabilities, in their place
    d_logits[rows, places] -= 1
    return losses, d_logits.masked_fill_(~scored[:, None], 0).to(logits.dtype)


def _run_native(logits: Tensor, labels: Tensor, with_gradient: bool) -> Tensor:
    """Each token's loss; the gradient takes the place of the logits."""
    losses = _empty_losses(logits)
    native_library.run(
        "cross_entropy",
        logits.dtype,
        *logits.shape,
        int(with_gradient),
        reads={"labels": labels},
        writes={"logits": logits, "losses": losses},
    )
    return losses


_native = torch.library.custom_op(
    "mixerloop::cross_entropy_", _run_native, mutates_args=("logits",), device_types="cpu"
)


@_native.register_fake
def _(logits, labels, with_gradient):
    return _empty_losses(logits)


def _empty_losses(logits: Tensor) -> Tensor:
    wide = torch.promote_types(logits.dtype, torch.float32)
    return logits.new_empty(len(logits), dtype=wide)
