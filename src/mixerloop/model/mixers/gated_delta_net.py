"""The Gated DeltaNet mixer: a matrix memory that is corrected at every token, and forgets."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mixerloop.config import Form
from mixerloop.draws import Draws
from mixerloop.kinds import GatedDeltaNetOptions
from mixerloop.model.decay_draws import draw_log_rates, draw_step_biases
from mixerloop.model.lens import UNWATCHED, Axes, Look
from mixerloop.model.linear_mixer import OF_HEADS, rule_points
from mixerloop.model.norm import RMSNorm
from mixerloop.model.projection import Projection
from mixerloop.model.sublayer import WEIGHT_STD, Cost, MixerModule, Output, Place, State
from mixerloop.ops.gated_delta_mixing import (
    MixingWeights,
    Projected,
    gated_delta_mixing,
    is_fused,
    mixing_without_context,
)
from mixerloop.ops.gated_delta_rule import form_of_rule


class GatedDeltaNetState(NamedTuple):
    """What the mixer remembers of a sequence."""

    memory: Float[Tensor, "batch heads d_key d_value"]
    conv_history: Float[Tensor, "batch history channels"]  # conv_width - 1 tokens


class GatedDeltaNet(MixerModule):
    """Projections, short convolution, gated delta rule, gated output norm, projection."""

    def __init__(self, options: GatedDeltaNetOptions, place: Place) -> None:
        super().__init__()
        self.num_heads, self.d_head = options.num_heads, options.d_head
        self.form: Form = form_of_rule(place.form, "own", options.d_head)
        self.d_value, self.largest_write = options.value_width, options.largest_write
        d_inner = options.num_heads * self.d_value
        channels = 2 * options.num_heads * options.d_head + d_inner
        self.qkv_proj = Projection(place.d_model, channels, form=place.form)
        self.qkv_conv = nn.Parameter(torch.empty(channels, options.conv_width))
        self.decay_proj = Projection(place.d_model, options.num_heads, form=place.form)
        self.write_proj = Projection(place.d_model, options.num_heads, form=place.form)
        self.gate_proj = Projection(place.d_model, d_inner, form=place.form)
        self.output_proj = Projection(d_inner, place.d_model, form=place.form)
        self.output_norm = RMSNorm(self.d_value, place.norm_eps, form=place.form)
        self.A_log = nn.Parameter(torch.empty(options.num_heads))
        self.dt_bias = nn.Parameter(torch.empty(options.num_heads))

    def forward(
        self,
        x: Float[Tensor, "batch seq d_model"],
        state: State | None = None,
        look: Look = UNWATCHED,
    ) -> Output:
        """Mix tokens with those before them."""
        memory, conv_history = (None, None) if state is None else state
        mixed, memory, conv_history = gated_delta_mixing(
            self._projected(x),
            self._weights(),
            norm_eps=self.output_norm.eps,
            largest_write=self.largest_write,
            form=self.form,
            memory=memory,
            conv_history=conv_history,
            watch=None if look is UNWATCHED else look,
        )
        state = GatedDeltaNetState(look("state", memory), conv_history)
        return Output(self.output_proj(mixed), state)

    def context_off(
        self, x: Float[Tensor, "batch seq d_model"]
    ) -> Float[Tensor, "batch seq d_model"]:
        """The update when each token writes to an empty memory and reads its own write."""
        mixed = mixing_without_context(
            self._projected(x),
            self._weights(),
            norm_eps=self.output_norm.eps,
            largest_write=self.largest_write,
        )
        return self.output_proj(mixed)

    def initial_state(
        self, batch: int, dtype: torch.dtype, device: torch.device
    ) -> GatedDeltaNetState:
        """An empty memory and no tokens before the first."""
        wide = torch.promote_types(dtype, torch.float32)
        channels, width = self.qkv_conv.shape
        return GatedDeltaNetState(
            memory=torch.zeros(
                batch, self.num_heads, self.d_head, self.d_value, dtype=wide, device=device
            ),
            conv_history=torch.zeros(batch, width - 1, channels, dtype=dtype, device=device),
        )

    def draw(self, name: str, draws: Draws) -> np.ndarray | None:
        """The filters like any matrix; decay rates and time steps spread as in Mamba."""
        if name == "qkv_conv":
            return WEIGHT_STD * draws.normals(self.qkv_conv.numel()).reshape(self.qkv_conv.shape)
        if name == "A_log":
            return draw_log_rates(self.num_heads, draws)
        return draw_step_biases(self.num_heads, draws) if name == "dt_bias" else None

    def cost(self, prefix_tokens: int) -> Cost:
        """Per token and head the rule reads the memory, corrects the memory, and reads again."""
        weights = (
            *(self.qkv_proj.weight, self.qkv_conv, self.decay_proj.weight),
            *(self.write_proj.weight, self.gate_proj.weight, self.output_proj.weight),
        )
        state = self.initial_state(1, torch.float32, torch.device("meta"))
        return Cost(
            projection_macs=sum(weight.numel() for weight in weights),
            recurrence_macs=3 * state.memory.numel(),
            state_bytes=sum(tensor.nbytes for tensor in state),
        )

    def forms(self) -> dict[str, Form]:
        """The whole mixing as one native operator, or the rule alone in some form."""
        if self._is_fused():
            return {"gated_delta_mixing": "native"}
        return {"gated_delta_mixing": "torch", "gated_delta_rule": self.form}

    def points(self) -> dict[str, Axes]:
        """The rule's inputs and outputs; of the fused form only the memory after the last token."""
        points = rule_points({"log_decay": OF_HEADS, "write_strength": OF_HEADS})
        return {"state": points["state"]} if self._is_fused() else points

    def _is_fused(self) -> bool:
        return is_fused(self._weights(), largest_write=self.largest_write, form=self.form)

    def _projected(self, x: Tensor) -> Projected:
        return Projected(
            qkv=self.qkv_proj(x),
            gate=self.gate_proj(x),
            decay=self.decay_proj(x),
            write=self.write_proj(x),
        )

    def _weights(self) -> MixingWeights:
        return MixingWeights(
            conv=self.qkv_conv,
            A_log=self.A_log,
            dt_bias=self.dt_bias,
            norm=self.output_norm.weight,
        )
