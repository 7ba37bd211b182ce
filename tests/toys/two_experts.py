"""A toy ffn: two experts, a router with a loss, and an expert that never fires."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mixerloop.config import Form
from mixerloop.draws import Draws
from mixerloop.model.sublayer import Cost, FFNModule, Output, Place, State, ffn_kind


@dataclass(frozen=True, kw_only=True)
class TwoExpertsOptions:
    d_expert: int = 12
    balance: float = 0.01
    """Weight of the router's loss."""


@ffn_kind("two_experts", TwoExpertsOptions)
class TwoExperts(FFNModule):
    may_skip_weights = True

    def __init__(self, options: TwoExpertsOptions, place: Place) -> None:
        super().__init__()
        self.balance = options.balance
        self.router = nn.Linear(place.d_model, 2, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(
                nn.Linear(place.d_model, options.d_expert),
                nn.SiLU(),
                nn.Linear(options.d_expert, place.d_model, bias=False),
            )
            for _ in range(2)
        )
        self.register_buffer("prejudice", torch.empty(2))

    def forward(self, x: Tensor, state: State | None = None) -> Output:
        weights = (self.router(x) + self.prejudice).softmax(-1)
        chosen = weights.argmax(-1)
        update = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            if mine.any():
                update[mine] = (weights[mine][:, number, None] * expert(x[mine])).to(x.dtype)
        return Output(update, losses={"balance": self.balance * self.router(x).square().mean()})

    def draw(self, name: str, draws: Draws) -> np.ndarray:
        assert name == "prejudice"
        return np.array([0.0, -1e4])  # the second expert never fires

    def cost(self, prefix_tokens: int) -> Cost:
        matrices = [*self.router.parameters(), *self.experts[0].parameters()]
        return Cost(projection_macs=sum(one.numel() for one in matrices if one.ndim == 2))

    def forms(self) -> dict[str, Form]:
        return {"two_experts": "torch"}
