"""The Mamba2 mixer: a memory that only adds; each head fades with its time step."""

from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mixerloop import draws as exact
from mixerloop.draws import Draws
from mixerloop.kinds import Mamba2Options
from mixerloop.model.decay_draws import draw_step_biases
from mixerloop.model.linear_mixer import OF_HEADS, LinearMixer, Prepared, RuleInputs, wide
from mixerloop.model.norm import RMSNorm
from mixerloop.model.projection import Projection
from mixerloop.model.short_convolution import ShortConvolution
from mixerloop.model.sublayer import Place, State


class Mamba2(LinearMixer):
    """Short convolution with a bias, skip of the values, norm of heads together after the gate."""

    gates: ClassVar = {"log_decay": OF_HEADS}

    def __init__(self, options: Mamba2Options, place: Place) -> None:
        super().__init__(
            place,
            num_heads=options.num_heads,
            d_key=options.d_state,
            d_value=options.d_head,
            erases=False,
        )
        self.num_groups = options.num_groups
        d_inner = self.num_heads * self.d_value
        self.sizes = [d_inner, self.num_groups * self.d_key, self.num_groups * self.d_key]
        self.vkq_proj = Projection(place.d_model, sum(self.sizes), form=place.form)
        self.vkq_conv = ShortConvolution(sum(self.sizes), options.conv_width, bias=True)
        self.gate_proj = Projection(place.d_model, d_inner, form=place.form)
        self.step_proj = Projection(place.d_model, self.num_heads, form=place.form)
        self.output_norm = RMSNorm(
            d_inner,
            place.norm_eps,
            form=place.form,
            num_groups=self.num_groups if options.norm_per_group else 1,
        )
        self.output_proj = Projection(d_inner, place.d_model, form=place.form)
        self.A_log = nn.Parameter(torch.empty(self.num_heads))
        self.dt_bias = nn.Parameter(torch.empty(self.num_heads))
        self.skip = nn.Parameter(torch.empty(self.num_heads))

    def prepare(self, x: Float[Tensor, "batch seq d_model"], carried: State | None) -> Prepared:
        """Values are x, keys B and queries C of the paper; a time step scales decay and value."""
        convolved, history = self.vkq_conv(self.vkq_proj(x), *(carried or ()))
        value, key, query = convolved.split(self.sizes, dim=-1)
        value = value.unflatten(-1, (self.num_heads, -1))
        heads_of_group = self.num_heads // self.num_groups
        key, query = (
            part.unflatten(-1, (self.num_groups, -1)).repeat_interleave(heads_of_group, dim=2)
            for part in (key, query)
        )
        step = F.softplus(wide(self.step_proj(x)) + self.dt_bias)
        rule = RuleInputs(query, key, step[..., None] * value, -self.A_log.exp() * step)
        return Prepared(rule, (history,), (value, self.gate_proj(x)))

    def finish(
        self, read: Float[Tensor, "batch seq heads d_value"], aside: tuple[Tensor, ...]
    ) -> Float[Tensor, "batch seq values"]:
        """Values skip the memory; gated heads, all or each group of them, at unit mean square."""
        value, gate = aside
        read = read + self.skip[:, None] * value
        return self.output_norm(read.flatten(-2) * F.silu(wide(gate)))

    def initial_carried(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """The history of the convolution."""
        return (self.vkq_conv.initial_history(batch, dtype, device),)

    def draw(self, name: str, draws: Draws) -> np.ndarray | None:
        """Rates 1, 2, 3, ..., time steps spread over their range, and a whole skip."""
        if name == "A_log":
            return exact.log(np.arange(1.0, self.num_heads + 1))
        if name == "dt_bias":
            return draw_step_biases(self.num_heads, draws)
        return np.ones(self.num_heads) if name == "skip" else None
