"""The Gated DeltaNet-2 mixer: a gate for each channel that erases and for each that writes."""

from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mixerloop.draws import Draws
from mixerloop.kinds import GatedDeltaNet2Options
from mixerloop.model.decay_draws import draw_log_rates, draw_step_biases
from mixerloop.model.delta_mixer import DeltaMixer
from mixerloop.model.linear_mixer import OF_KEYS, Prepared, RuleInputs, low_rank, wide
from mixerloop.model.projection import Projection
from mixerloop.model.sublayer import Place, State
from mixerloop.ops.gated_delta_rule import form_of_rule

LEAST_RATE = 1.0  # of exp(A_log), as in flash-linear-attention


class GatedDeltaNet2(DeltaMixer):
    """As Kimi delta attention, with a gate for each channel that erases and each that writes."""

    gates: ClassVar = {"log_decay": OF_KEYS, "erase_key": OF_KEYS}

    def __init__(self, options: GatedDeltaNet2Options, place: Place) -> None:
        super().__init__(options, place)
        self.form = form_of_rule(place.form, "given", self.d_key)
        self.erase_proj = Projection(place.d_model, self.d_keys, form=place.form)
        self.write_proj = Projection(place.d_model, self.d_values, form=place.form)
        self.decay_proj = low_rank(place.d_model, self.d_value, self.d_keys, form=place.form)
        self.gate_proj = low_rank(
            place.d_model, self.d_value, self.d_values, bias=True, form=place.form
        )
        self.A_log = nn.Parameter(torch.empty(options.num_heads))
        self.dt_bias = nn.Parameter(torch.empty(self.d_keys))

    def prepare(self, x: Float[Tensor, "batch seq d_model"], carried: State | None) -> Prepared:
        """Negative eigenvalues come from erase gates up to 2; write gates stay up to 1."""
        query, key, value, carried = self.heads(x, carried)
        erase = self.largest_write * self._by_head(self.erase_proj(x)).sigmoid()
        write = self._by_head(self.write_proj(x)).sigmoid()
        step = F.softplus(self._by_head(wide(self.decay_proj(x)) + self.dt_bias))
        log_decay = -self.A_log.exp()[:, None] * step
        rule = RuleInputs(query, key, write * value, log_decay, erase_key=erase * key)
        return Prepared(rule, carried, (self.gate_proj(x),))

    def finish(
        self, read: Float[Tensor, "batch seq heads d_value"], aside: tuple[Tensor, ...]
    ) -> Float[Tensor, "batch seq values"]:
        """Each head at unit mean square, behind its gate."""
        (gate,) = aside
        return self.output_norm(read).flatten(-2) * gate.sigmoid()

    def draw(self, name: str, draws: Draws) -> np.ndarray | None:
        """Decay rates and time steps spread as in Mamba."""
        if name == "A_log":
            return draw_log_rates(self.num_heads, draws, least=LEAST_RATE)
        return draw_step_biases(self.d_keys, draws) if name == "dt_bias" else None

    def _by_head(self, x: Tensor) -> Float[Tensor, "batch seq heads width"]:
        return wide(x).unflatten(-1, (self.num_heads, -1))
