"""What the mixers of the delta rule share: queries, keys and values."""

import torch
from jaxtyping import Float
from torch import Tensor

from mixerloop.kinds.mixers import DeltaRuleOptions
from mixerloop.model.linear_mixer import LinearMixer, unit_length
from mixerloop.model.norm import RMSNorm
from mixerloop.model.projection import Projection
from mixerloop.model.short_convolution import ShortConvolution
from mixerloop.model.sublayer import Place, State


class DeltaMixer(LinearMixer):
    """A projection and a short convolution; queries and keys have length 1, queries are scaled."""

    def __init__(self, options: DeltaRuleOptions, place: Place) -> None:
        super().__init__(
            place,
            num_heads=options.num_heads,
            d_key=options.d_head,
            d_value=options.value_width,
            erases=True,
        )
        self.largest_write = options.largest_write
        self.d_keys, self.d_values = self.num_heads * self.d_key, self.num_heads * self.d_value
        channels = 2 * self.d_keys + self.d_values
        self.qkv_proj = Projection(place.d_model, channels, form=place.form)
        self.qkv_conv = ShortConvolution(channels, options.conv_width)
        self.output_norm = RMSNorm(self.d_value, place.norm_eps, form=place.form)
        self.output_proj = Projection(self.d_values, place.d_model, form=place.form)

    def heads(
        self, x: Float[Tensor, "batch seq d_model"], carried: State | None
    ) -> tuple[
        Float[Tensor, "batch seq heads d_key"],
        Float[Tensor, "batch seq heads d_key"],
        Float[Tensor, "batch seq heads d_value"],
        State,
    ]:
        """Query, key and value of each head, and the history for the next call."""
        qkv, history = self.qkv_conv(self.qkv_proj(x), *(carried or ()))
        sizes = [self.d_keys, self.d_keys, self.d_values]
        query, key, value = (
            part.unflatten(-1, (self.num_heads, -1)) for part in qkv.split(sizes, dim=-1)
        )
        return unit_length(query) * self.d_key**-0.5, unit_length(key), value, (history,)

    def initial_carried(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """The history of the convolution."""
        return (self.qkv_conv.initial_history(batch, dtype, device),)
