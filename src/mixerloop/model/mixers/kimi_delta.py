"""The Kimi delta attention mixer: the delta rule with a decay for each channel of the keys."""

from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mixerloop.draws import Draws
from mixerloop.kinds import KimiDeltaOptions
from mixerloop.model.decay_draws import draw_log_rates, draw_step_biases
from mixerloop.model.delta_mixer import DeltaMixer
from mixerloop.model.linear_mixer import OF_HEADS, OF_KEYS, Prepared, RuleInputs, low_rank, wide
from mixerloop.model.projection import Projection
from mixerloop.model.sublayer import Place, State

LEAST_RATE = 1.0  # of exp(A_log), as in flash-linear-attention


class KimiDelta(DeltaMixer):
    """Short convolution, delta rule, output norm behind a sigmoid gate; low-rank decay and gate."""

    gates: ClassVar = {"log_decay": OF_KEYS, "write_strength": OF_HEADS}

    def __init__(self, options: KimiDeltaOptions, place: Place) -> None:
        super().__init__(options, place)
        self.least_log_decay = options.least_log_decay
        self.write_proj = Projection(place.d_model, options.num_heads, form=place.form)
        self.decay_proj = low_rank(place.d_model, self.d_value, self.d_keys, form=place.form)
        self.gate_proj = low_rank(place.d_model, self.d_value, self.d_values, form=place.form)
        self.A_log = nn.Parameter(torch.empty(options.num_heads))
        self.dt_bias = nn.Parameter(torch.empty(self.d_keys))

    def prepare(self, x: Float[Tensor, "batch seq d_model"], carried: State | None) -> Prepared:
        """Keys erase and write with one strength, after each channel has faded."""
        query, key, value, carried = self.heads(x, carried)
        write = self.largest_write * wide(self.write_proj(x)).sigmoid()
        rule = RuleInputs(query, key, value, self._log_decay(x), write_strength=write)
        return Prepared(rule, carried, (self.gate_proj(x),))

    def finish(
        self, read: Float[Tensor, "batch seq heads d_value"], aside: tuple[Tensor, ...]
    ) -> Float[Tensor, "batch seq values"]:
        """Each head at unit mean square, behind its gate."""
        (gate,) = aside
        return self.output_norm(read).flatten(-2) * gate.sigmoid()

    def draw(self, name: str, draws: Draws) -> np.ndarray | None:
        """Rates of 1 where the decay has a bound, as in flash-linear-attention."""
        if name == "A_log" and self.least_log_decay is not None:
            return np.zeros(self.num_heads)
        if name == "A_log":
            return draw_log_rates(self.num_heads, draws, least=LEAST_RATE)
        return draw_step_biases(self.d_keys, draws) if name == "dt_bias" else None

    def _log_decay(self, x: Tensor) -> Float[Tensor, "batch seq heads d_key"]:
        step = (wide(self.decay_proj(x)) + self.dt_bias).unflatten(-1, (self.num_heads, -1))
        rate = self.A_log.exp()[:, None]
        if self.least_log_decay is None:
            return -rate * F.softplus(step)
        return self.least_log_decay * (rate * step).sigmoid()
