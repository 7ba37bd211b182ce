"""What a sublayer is: the base classes of every mixer and ffn, and how a kind is registered.

A mixer lets a token see earlier tokens; an ffn need not. Both turn a normalised residual into an
update, may carry a state from token to token, and may add losses of their own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mixerloop.config import Form
from mixerloop.draws import Draws
from mixerloop.kinds import Kind, register
from mixerloop.model.lens import Axes

Class = TypeVar("Class", bound=type)
WEIGHT_STD = 0.02
"""The standard deviation of a fresh matrix (paper, "Training Settings")."""
State = tuple[Tensor, ...]
"""What a sublayer remembers of the tokens so far: a (named) tuple of tensors, batch first. Its size
is constant, or grows with the tokens. A sublayer that remembers nothing has the empty tuple."""
Losses = dict[str, Tensor]
"""Auxiliary losses by name. Each is a scalar, a mean over tokens, with its weight in it."""


class CoupledLoss(NamedTuple):
    """A loss that is no mean over tokens: weight * sum of statistic * mean.

    Both factors are means over tokens. Given the statistic of a whole step, the loss is linear in
    the tokens, so that a step may be computed in parts.
    """

    statistic: Tensor
    """Has no gradient."""
    mean: Tensor
    weight: float

    def value(self, statistic: Tensor) -> Tensor:
        """The loss with the statistic of these tokens, or of more tokens."""
        return self.weight * (statistic * self.mean).sum()


class Output(NamedTuple):
    """What one occurrence of a sublayer computes."""

    update: Float[Tensor, "batch seq d_model"]
    """Is added to the residual."""
    state: State = ()
    """The state after the last token."""
    losses: Mapping[str, Tensor | CoupledLoss] | None = None


@dataclass(frozen=True)
class Cost:
    """What one occurrence of a sublayer costs at a token: per token, except for the state."""

    projection_macs: int
    """Multiply-adds with weights; short convolutions count, as in the paper."""
    recurrence_macs: int = 0
    """Multiply-adds with the state, by the definition of the recurrence."""
    state_bytes: int = 0
    """Memory one sequence keeps between tokens while decoding in float32."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where in a model a sublayer stands: all that its class is given besides its own options."""

    layer: int
    num_layers: int
    d_model: int
    norm_eps: float
    form: Form
    """The form of the model's operators; a sublayer that has no such form says so in `forms`.

    A module keeps it as `form`: transport sets that to torch in its float64 copy of a model.
    """


class SublayerModule(nn.Module, ABC):
    """A mixer or an ffn. A class is made with the options of its kind and a `Place`."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "batch seq d_model"], state: State | None = None) -> Output:
        """Run over some tokens; without a state a new sequence begins."""

    @abstractmethod
    def cost(self, prefix_tokens: int) -> Cost:
        """The cost of the token after `prefix_tokens` others; it never falls as they grow."""

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """The state before the first token, for activations of this type."""
        return ()

    def draw(self, name: str, draws: Draws) -> np.ndarray | None:
        """The initial value of the parameter or buffer `name` that this module itself owns.

        `initialization.initialize` knows the layers of `torch.nn`. Anything else that is None here
        is an error. A buffer that is not persistent must not depend on `draws`.
        """
        return None

    def forms(self) -> dict[str, Form]:
        """The form of each operator that runs in this sublayer."""
        return {}

    def points(self) -> Mapping[str, Axes]:
        """The points inside this sublayer in its form, with the axes of their activations.

        Form torch has them all; a kernel that computes several steps at once may have fewer.
        The `forward` of a class with points takes a keyword `look: Look = UNWATCHED` and calls
        `x = look("point", x)` at each. An occurrence without context has no such points.
        """
        return {}

    may_skip_weights = False
    """Whether a forward may leave weights without a gradient, as a mixture of experts does."""
    couples_tokens = False
    """Whether a loss is a `CoupledLoss`, whose statistic is of all tokens of a step."""


class MixerModule(SublayerModule):
    """A mixer. Its last projection is called `output_proj`, which `init = "released"` shrinks."""

    @abstractmethod
    def context_off(
        self, x: Float[Tensor, "batch seq d_model"]
    ) -> Float[Tensor, "batch seq d_model"]:
        """The update when every token is a sequence of its own."""


class FFNModule(SublayerModule):
    """An ffn. Its last projection is called `down_proj`, which `init = "released"` shrinks."""


class RoutedFFN(FFNModule):
    """An ffn that chooses experts for each token; they are its point `experts`."""

    num_experts: int
    num_chosen: int
    """Experts that a token uses."""


def mixer_kind(name: str, options: type[Any]) -> Callable[[Class], Class]:
    """Register a class as a kind of mixer, from a file of your own."""
    return _registered(name, "mixer", options)


def ffn_kind(name: str, options: type[Any]) -> Callable[[Class], Class]:
    """Register a class as a kind of ffn, from a file of your own."""
    return _registered(name, "ffn", options)


def _registered(name: str, role: Any, options: type[Any]) -> Callable[[Class], Class]:
    def decorate(cls: Class) -> Class:
        register(Kind(name, role, options, cls))
        return cls

    return decorate


def has_state(sublayer: SublayerModule) -> bool:
    """Whether a sublayer carries anything from token to token."""
    return bool(sublayer.initial_state(1, torch.float32, torch.device("meta")))
