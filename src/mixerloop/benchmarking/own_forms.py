"""Our forms of the rule as implementations to time."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mixerloop.benchmarking.implementation import (
    Implementation,
    Inputs,
    Prepared,
    with_autograd,
)
from mixerloop.config import Form
from mixerloop.ops import native_library
from mixerloop.ops.gated_delta_rule import gated_delta_rule
from mixerloop.ops.linear_attention import bind_linear_attention

TOKENS = ("query", "key", "value")


def ours(form: Form) -> Callable[[Inputs], tuple[Tensor, Tensor]]:
    """The call of a user."""
    return lambda inputs: gated_delta_rule(**inputs, form=form)


def _bound(inputs: Inputs, _cotangents: tuple[Tensor, Tensor]) -> Prepared:
    bound = bind_linear_attention(**inputs, in_place=False)

    def outputs() -> tuple[Tensor, Tensor]:
        bound.run()
        return bound.output.clone(), bound.final_state.clone()

    return Prepared(forward=bound.run, outputs=outputs)


def _narrow(inputs: Inputs, cotangents: tuple[Tensor, Tensor]) -> Prepared:
    given = inputs | {name: inputs[name].bfloat16() for name in TOKENS}
    d_output, d_state = cotangents
    return with_autograd(ours("native"), given, (d_output.bfloat16(), d_state))


def _is_compiled() -> bool:
    return native_library.library() is not None


NATIVE = Implementation(
    name="native",
    is_installed=_is_compiled,
    prepare=partial(with_autograd, ours("native")),
    decays=("head", "channel"),
)
TORCH = Implementation(
    name="torch",
    is_installed=lambda: True,
    prepare=partial(with_autograd, ours("torch")),
    decays=("head", "channel"),
)
NATIVE_BFLOAT16 = Implementation(
    name="native_bfloat16",
    is_installed=_is_compiled,
    prepare=_narrow,
    decays=("head", "channel"),
    dtype=torch.bfloat16,
)
NATIVE_BOUND = Implementation(
    name="native_bound",
    is_installed=_is_compiled,
    prepare=_bound,
    decays=("head", "channel"),
    is_bound=True,
)
