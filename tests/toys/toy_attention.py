"""A toy mixer whose state grows: one head of causal softmax attention without positions."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mixerloop.config import Form
from mixerloop.model.sublayer import Cost, MixerModule, Output, Place, State, mixer_kind


@dataclass(frozen=True, kw_only=True)
class ToyAttentionOptions:
    d_attention: int = 8


class ToyAttentionState(NamedTuple):
    keys: Tensor
    values: Tensor


@mixer_kind("toy_attention", ToyAttentionOptions)
class ToyAttention(MixerModule):
    def __init__(self, options: ToyAttentionOptions, place: Place) -> None:
        super().__init__()
        self.width = options.d_attention
        self.qkv_proj = nn.Linear(place.d_model, 3 * self.width, bias=False)
        self.output_proj = nn.Linear(self.width, place.d_model, bias=False)

    def forward(self, x: Tensor, state: State | None = None) -> Output:
        query, key, value = self.qkv_proj(x).chunk(3, dim=-1)
        if state is not None:
            key, value = (
                torch.cat([*pair], dim=1) for pair in zip(state, (key, value), strict=True)
            )
        before = key.shape[1] - x.shape[1]
        future = torch.ones(x.shape[1], key.shape[1], dtype=torch.bool).triu(before + 1)
        scores = (query @ key.mT).masked_fill(future, -torch.inf)
        update = self.output_proj(scores.softmax(-1) @ value)
        return Output(update, ToyAttentionState(key, value))

    def context_off(self, x: Tensor) -> Tensor:
        return self.output_proj(self.qkv_proj(x)[..., 2 * self.width :])

    def initial_state(
        self, batch: int, dtype: torch.dtype, device: torch.device
    ) -> ToyAttentionState:
        empty = torch.zeros(batch, 0, self.width, dtype=dtype, device=device)
        return ToyAttentionState(empty, empty)

    def cost(self, prefix_tokens: int) -> Cost:
        return Cost(
            projection_macs=self.qkv_proj.weight.numel() + self.output_proj.weight.numel(),
            recurrence_macs=2 * self.width * (prefix_tokens + 1),
            state_bytes=8 * self.width * prefix_tokens,
        )

    def forms(self) -> dict[str, Form]:
        return {"toy_attention": "torch"}
