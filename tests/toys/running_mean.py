"""A toy mixer with buffers, a bias and a GroupNorm: a token reads the mean of the values so far."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mixerloop.config import Form
from mixerloop.draws import Draws
from mixerloop.model.sublayer import Cost, MixerModule, Output, Place, State, mixer_kind


@dataclass(frozen=True, kw_only=True)
class RunningMeanOptions:
    d_mean: int = 8
    """Width of the averaged values."""


class RunningMeanState(NamedTuple):
    total: Tensor
    num_tokens: Tensor


@mixer_kind("running_mean", RunningMeanOptions)
class RunningMean(MixerModule):
    def __init__(self, options: RunningMeanOptions, place: Place) -> None:
        super().__init__()
        self.value_proj = nn.Linear(place.d_model, options.d_mean)
        self.norm = nn.GroupNorm(2, options.d_mean)
        self.output_proj = nn.Linear(options.d_mean, place.d_model, bias=False)
        self.register_buffer("sharpness", torch.empty(options.d_mean))
        self.register_buffer("signs", torch.empty(options.d_mean), persistent=False)

    def forward(self, x: Tensor, state: State | None = None) -> Output:
        if state is None:
            state = self.initial_state(x.shape[0], x.dtype, x.device)
        total = state[0][:, None] + self.value_proj(x).cumsum(dim=1)
        count = state[1][:, None] + torch.arange(1, x.shape[1] + 1, device=x.device)
        update = self._projected(total / count[..., None])
        return Output(update, RunningMeanState(total[:, -1], count[:, -1]))

    def context_off(self, x: Tensor) -> Tensor:
        return self._projected(self.value_proj(x))

    def initial_state(
        self, batch: int, dtype: torch.dtype, device: torch.device
    ) -> RunningMeanState:
        width = self.value_proj.out_features
        total = torch.zeros(batch, width, dtype=dtype, device=device)
        return RunningMeanState(total, torch.zeros(batch, dtype=dtype, device=device))

    def draw(self, name: str, draws: Draws) -> np.ndarray:
        width = self.value_proj.out_features
        return {"sharpness": np.full(width, 3.0), "signs": np.resize([1.0, -1.0], width)}[name]

    def cost(self, prefix_tokens: int) -> Cost:
        width = self.value_proj.out_features
        weights = self.value_proj.weight.numel() + self.output_proj.weight.numel()
        return Cost(projection_macs=weights, recurrence_macs=width, state_bytes=4 * (width + 1))

    def forms(self) -> dict[str, Form]:
        return {"running_mean": "torch"}

    def _projected(self, mean: Tensor) -> Tensor:
        normed = self.norm(mean.flatten(0, 1)).view_as(mean)
        return self.output_proj(torch.tanh(normed * self.sharpness * self.signs))
