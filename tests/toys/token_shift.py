"""A toy ffn with a state: each token also reads the token before it."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mixerloop.config import Form
from mixerloop.model.sublayer import Cost, FFNModule, Output, Place, State, ffn_kind


@dataclass(frozen=True, kw_only=True)
class TokenShiftOptions:
    d_shift: int = 12


class TokenShiftState(NamedTuple):
    last: Tensor


@ffn_kind("token_shift", TokenShiftOptions)
class TokenShift(FFNModule):
    def __init__(self, options: TokenShiftOptions, place: Place) -> None:
        super().__init__()
        self.up_proj = nn.Linear(2 * place.d_model, options.d_shift, bias=False)
        self.down_proj = nn.Linear(options.d_shift, place.d_model, bias=False)

    def forward(self, x: Tensor, state: State | None = None) -> Output:
        if state is None:
            state = self.initial_state(x.shape[0], x.dtype, x.device)
        before = torch.cat([state[0][:, None].to(x.dtype), x[:, :-1]], dim=1)
        update = self.down_proj(self.up_proj(torch.cat([x, before], dim=-1)).tanh())
        return Output(update, TokenShiftState(x[:, -1]))

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        width = self.up_proj.in_features // 2
        return TokenShiftState(torch.zeros(batch, width, dtype=dtype, device=device))

    def cost(self, prefix_tokens: int) -> Cost:
        return Cost(
            projection_macs=self.up_proj.weight.numel() + self.down_proj.weight.numel(),
            state_bytes=2 * self.up_proj.in_features,
        )

    def forms(self) -> dict[str, Form]:
        return {"token_shift": "torch"}
