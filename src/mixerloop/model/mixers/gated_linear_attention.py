"""The gated linear attention mixer: a memory that only adds; each channel fades at its own rate."""

from typing import ClassVar

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mixerloop.kinds import GatedLinearAttentionOptions
from mixerloop.model.linear_mixer import OF_KEYS, LinearMixer, Prepared, RuleInputs, low_rank, wide
from mixerloop.model.norm import RMSNorm
from mixerloop.model.projection import Projection
from mixerloop.model.sublayer import Place, State


class GatedLinearAttention(LinearMixer):
    """Plain queries and keys, low-rank decays, output norm behind a SiLU gate."""

    gates: ClassVar = {"log_decay": OF_KEYS}

    def __init__(self, options: GatedLinearAttentionOptions, place: Place) -> None:
        super().__init__(
            place,
            num_heads=options.num_heads,
            d_key=options.d_head,
            d_value=options.value_width,
            erases=False,
        )
        self.decay_divisor = options.decay_divisor
        d_keys, d_values = self.num_heads * self.d_key, self.num_heads * self.d_value
        self.qkv_proj = Projection(place.d_model, 2 * d_keys + d_values, form=place.form)
        self.decay_proj = low_rank(
            place.d_model, options.decay_rank, d_keys, bias=True, form=place.form
        )
        self.gate_proj = Projection(place.d_model, d_values, form=place.form)
        self.output_norm = RMSNorm(self.d_value, place.norm_eps, form=place.form)
        self.output_proj = Projection(d_values, place.d_model, form=place.form)

    def prepare(self, x: Float[Tensor, "batch seq d_model"], carried: State | None) -> Prepared:
        """A channel keeps sigmoid(decay)^(1 / decay_divisor) of its memory."""
        d_keys = self.num_heads * self.d_key
        sizes = [d_keys, d_keys, self.num_heads * self.d_value]
        query, key, value, decay = (
            part.unflatten(-1, (self.num_heads, -1))
            for part in (*wide(self.qkv_proj(x)).split(sizes, dim=-1), wide(self.decay_proj(x)))
        )
        log_decay = F.logsigmoid(decay) / self.decay_divisor
        rule = RuleInputs(query * self.d_key**-0.5, key, value, log_decay)
        return Prepared(rule, aside=(self.gate_proj(x),))

    def finish(
        self, read: Float[Tensor, "batch seq heads d_value"], aside: tuple[Tensor, ...]
    ) -> Float[Tensor, "batch seq values"]:
        """Each head at unit mean square, behind its gate."""
        (gate,) = aside
        return self.output_norm(read).flatten(-2) * F.silu(gate)
