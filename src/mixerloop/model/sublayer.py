"""What the walk asks of a sublayer."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mixerloop.draws import Draws

MixerState = tuple[Tensor, ...]
"""A mixer's memory of the tokens so far: a (named) tuple of tensors, batch first."""


@dataclass(frozen=True)
class Cost:
    """What one occurrence of a sublayer costs: per token, except for the state."""

    projection_macs: int
    """Multiply-adds with weights; short convolutions count, as in the paper."""
    recurrence_macs: int = 0
    """Multiply-adds with the state, by the definition of the recurrence."""
    state_bytes: int = 0
    """Memory one sequence keeps between tokens while decoding in float32."""


class Mixer(Protocol):
    """A sublayer that lets tokens see earlier ones; any mixer that fits here can be looped.

    Its last projection is called `output_proj`, which is what the released init rule shrinks.
    """

    def __call__(
        self, x: Float[Tensor, "batch seq d_model"], state: MixerState | None = None
    ) -> tuple[Float[Tensor, "batch seq d_model"], MixerState]:
        """The update to the residual and the state to go on from; no state is a new sequence."""
        ...

    def context_off(
        self, x: Float[Tensor, "batch seq d_model"]
    ) -> Float[Tensor, "batch seq d_model"]:
        """The update when every token is a sequence of its own."""
        ...

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> MixerState:
        """The state of a sequence before its first token, for activations of this type."""
        ...

    def draw(self, name: str, draws: Draws) -> np.ndarray | None:
        """A fresh value of its parameter `name`, or None for the common rule."""
        ...

    def cost(self) -> Cost:
        """What one occurrence costs."""
        ...
