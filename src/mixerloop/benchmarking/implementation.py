"""An implementation of the gated delta rule, ours or a peer's, as the benchmark sees it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Inputs = dict[str, Tensor]
"""The arguments of `gated_delta_rule`; a decay per channel makes `log_decay` as wide as the key."""
Decay = Literal["head", "channel"]


def decay_of(inputs: Inputs) -> Decay:
    """Whether the state decays by one number for a head, or by one for each channel of its keys."""
    return "channel" if inputs["log_decay"].ndim == inputs["key"].ndim else "head"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Calls on the implementation's own arrays: converting and building graphs is already done."""

    forward: Callable[[], object]
    """The call that is timed."""
    outputs: Callable[[], tuple[Tensor, Tensor]]
    """The output and the final state of one call, in our layout."""
    forward_backward: Callable[[], object] | None = None
    gradients: Callable[[], Inputs] | None = None
    """The gradient of each input, in our layout."""
    rest: Callable[[], object] | None = None
    """Stops threads that still spin after a call and would slow down the next implementation."""


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """An implementation of the rule: which members of the family it has, and how it is called."""

    name: str
    is_installed: Callable[[], bool]
    prepare: Callable[[Inputs, tuple[Tensor, Tensor]], Prepared]
    """From the inputs and the gradients of the output and of the final state."""
    decays: tuple[Decay, ...] = ("head",)
    dtype: torch.dtype = torch.float32
    """The type of query, key and value; benchmarks compare results with the same type's inputs."""
    is_bound: bool = False
    """Whether a call reads and writes memory that was named before, like our bound call."""
    version: Callable[[], str] = lambda: ""
    """Of the package that a peer is from."""
    limit: Callable[[Inputs], str | None] = lambda inputs: None
    """Why some inputs are not supported."""

    def why_not(self, inputs: Inputs) -> str | None:
        """Why these inputs are not supported; None if they are."""
        if (decay := decay_of(inputs)) not in self.decays:
            return f"has no decay per {decay}"
        return self.limit(inputs)


def with_autograd(
    rule: Callable[[Inputs], tuple[Tensor, Tensor]],
    inputs: Inputs,
    cotangents: tuple[Tensor, Tensor],
    *,
    query_scale: float = 1.0,
) -> Prepared:
    """Calls of a function of torch tensors, which multiplies its query by 1 / `query_scale`."""
    given = inputs | {"query": inputs["query"] * query_scale}

    def forward_backward() -> tuple[Tensor, ...]:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
        return torch.autograd.grad(rule(leaves), list(leaves.values()), cotangents)

    def gradients() -> Inputs:
        of = dict(zip(given, forward_backward(), strict=True))
        return of | {"query": of["query"] * query_scale}

    return Prepared(
        forward=lambda: rule(given),
        outputs=lambda: rule(given),
        forward_backward=forward_backward,
        gradients=gradients,
    )
