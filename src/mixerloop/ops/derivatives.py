"""Which derivatives an operator has in a form. A derivative it lacks raises an error.

A backward written by hand knows nothing of second derivatives, of forward mode or of the transforms
of `torch.func`, and torch may leave its part out without an error.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad

from mixerloop.config import Form


def transforms_are_active() -> bool:
    """Whether a transform of `torch.func` or forward mode surrounds the caller."""
    if forward_ad._current_level >= 0:
        return True
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def needs_more_than_gradients() -> bool:
    """Inside a backward: whether its results are differentiated again, or transformed."""
    return not torch.compiler.is_compiling() and (
        torch.is_grad_enabled() or transforms_are_active()
    )


def are_transformed(*tensors: Tensor) -> bool:
    """Whether a surrounding transform differentiates with respect to one of the tensors."""
    if not transforms_are_active():
        return False
    return torch.compiler.is_compiling() or any(map(_is_transformed, tensors))


def numbers_are_hidden() -> bool:
    """Whether `vmap` surrounds the caller, so that no branch can depend on a number."""
    if torch.compiler.is_compiling():
        return False
    stack = _functorch.get_interpreter_stack() or []
    return any(layer.key() == _functorch.TransformType.Vmap for layer in stack)


def refuse_batches(operator: str, form: Form, *cotangents: Tensor) -> None:
    """Reject what `torch.autograd.grad` makes of `is_grads_batched=True`."""
    if any(map(_functorch.is_legacy_batchedtensor, cotangents)):
        raise ValueError(
            f"{operator}: form {form} takes no batch of cotangents (is_grads_batched=True); "
            "use torch.func.vjp with form torch, or form definition"
        )


def gradients_through(
    function: Callable[..., tuple[Tensor, ...]],
    inputs: Sequence[Tensor],
    d_results: Sequence[Tensor],
) -> list[Tensor | None]:
    """The backward of `function` by autograd, which can be differentiated again.

    An input may be computed from another input. The gradients belong to views, so that they do not
    include such a path.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        views = [x.view_as(x) for x in inputs]
        wanted = [view for view in views if view.requires_grad]
        found = iter(
            torch.autograd.grad(function(*views), wanted, d_results, create_graph=create_graph)
        )
    return [next(found) if view.requires_grad else None for view in views]


@dataclass(frozen=True)
class GradientOnly:
    """An operator in a form that has a gradient and no other derivative."""

    operator: str
    form: Form
    instead: str  # what has the other derivatives

    def check(self, *tensors: Tensor) -> None:
        """Reject tensors whose forward-mode or `torch.func` derivative is wanted."""
        if are_transformed(*tensors):
            raise ValueError(
                f"{self.operator}: form {self.form} has no forward-mode derivative and no "
                f"torch.func.grad, vjp or jvp; use {self.instead}"
            )

    def refuse_second(self, *_: object) -> NoReturn:
        """The backward of the backward."""
        raise ValueError(
            f"{self.operator}: form {self.form} has no second derivative; use {self.instead}"
        )

    def only_once(
        self, gradients: Sequence[Tensor | None], *, computed_from: Sequence[Tensor]
    ) -> tuple[Tensor | None, ...]:
        """The gradients, with an error for those who differentiate them again."""
        if not needs_more_than_gradients():
            return tuple(gradients)
        return tuple(
            None if gradient is None else _Once.apply(self, gradient, *computed_from)
            for gradient in gradients
        )


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rule, gradient, *_):
        ctx.rule = rule
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx, *_):
        ctx.rule.refuse_second()


def _is_transformed(tensor: Tensor) -> bool:
    """All tensors made inside `torch.func.jvp` count: whether they have tangents is not visible."""
    has_tangents = forward_ad._current_level >= 0
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_gradtrackingtensor(tensor) and (has_tangents or tensor.requires_grad):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    with torch._C._DisableFuncTorch():
        return has_tangents and forward_ad.unpack_dual(tensor).tangent is not None
