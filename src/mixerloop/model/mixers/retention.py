"""The retention mixer (RetNet): a memory that only adds; each head fades at a constant rate."""

from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mixerloop import draws as exact
from mixerloop.draws import Draws
from mixerloop.kinds import RetentionOptions
from mixerloop.model.linear_mixer import OF_HEADS, LinearMixer, Prepared, RuleInputs, wide
from mixerloop.model.norm import RMSNorm
from mixerloop.model.projection import Projection
from mixerloop.model.rotary import Rotary, positions_after
from mixerloop.model.sublayer import Place, State


class Retention(LinearMixer):
    """Rotary queries and keys, output norm behind a SiLU gate; it carries its number of tokens."""

    gates: ClassVar = {"log_decay": OF_HEADS}

    def __init__(self, options: RetentionOptions, place: Place) -> None:
        super().__init__(
            place,
            num_heads=options.num_heads,
            d_key=options.d_head,
            d_value=options.value_width,
            erases=False,
        )
        d_keys, d_values = self.num_heads * self.d_key, self.num_heads * self.d_value
        self.qkv_proj = Projection(place.d_model, 2 * d_keys + d_values, form=place.form)
        self.gate_proj = Projection(place.d_model, d_values, form=place.form)
        self.rotary = Rotary(self.d_key, base=options.rotary_base, pairs="half")
        self.output_norm = RMSNorm(self.d_value, place.norm_eps, form=place.form)
        self.output_proj = Projection(d_values, place.d_model, form=place.form)
        self.register_buffer("log_decay", torch.empty(self.num_heads), persistent=False)

    def prepare(self, x: Float[Tensor, "batch seq d_model"], carried: State | None) -> Prepared:
        """Queries and keys turn with their positions."""
        d_keys = self.num_heads * self.d_key
        sizes = [d_keys, d_keys, self.num_heads * self.d_value]
        query, key, value = (
            part.unflatten(-1, (self.num_heads, -1))
            for part in wide(self.qkv_proj(x)).split(sizes, dim=-1)
        )
        batch, seq, _ = x.shape
        (num_tokens,) = carried or self.initial_carried(batch, x.dtype, x.device)
        positions = positions_after(num_tokens if carried else None, seq, x.device)
        query, key = self.rotary(query, key, positions)
        log_decay = self.get_buffer("log_decay").expand(batch, seq, -1)
        rule = RuleInputs(query * self.d_key**-0.5, key, value, log_decay)
        return Prepared(rule, (num_tokens + seq,), (self.gate_proj(x),))

    def finish(
        self, read: Float[Tensor, "batch seq heads d_value"], aside: tuple[Tensor, ...]
    ) -> Float[Tensor, "batch seq values"]:
        """Each head at unit mean square, behind its gate."""
        (gate,) = aside
        return self.output_norm(read).flatten(-2) * F.silu(gate)

    def initial_carried(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """The number of tokens so far, which is the position of the next."""
        return (torch.zeros(batch, dtype=torch.int64, device=device),)

    def draw(self, name: str, draws: Draws) -> np.ndarray | None:
        """Head h keeps 1 - 2^(-5-h) of its memory at each token."""
        if name == "log_decay":
            return exact.log(1 - 2.0 ** (-5.0 - np.arange(self.num_heads)))
        return None
