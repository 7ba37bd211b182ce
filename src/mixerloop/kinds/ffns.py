"""The ffns that come with the package: their options and their registration."""

from dataclasses import dataclass
from typing import Literal

from mixerloop.kinds.registry import Kind, check_size, register


@dataclass(frozen=True, kw_only=True)
class SwiGLUOptions:
    """Options of the SwiGLU ffn."""

    d_ffn: int
    """Inner width of the SwiGLU ffn."""
    bias: bool = False
    """Add a learned bias after each projection."""

    def __post_init__(self) -> None:
        """Reject impossible sizes."""
        check_size("d_ffn", self.d_ffn)


@dataclass(frozen=True, kw_only=True)
class ExpertsOptions:
    """Options of the sparse mixture of SwiGLU experts."""

    d_ffn: int
    """Inner width that a token uses: each expert is d_ffn / num_chosen wide."""
    num_experts: int = 8
    """Experts to choose among."""
    num_chosen: int = 2
    """Experts that a token uses."""
    router: Literal["softmax", "sigmoid"] = "softmax"
    """Scores of the experts: they compete in a softmax, or each has a sigmoid of its own."""
    normalise_weights: bool = True
    """Divide the scores of the chosen experts by their sum."""
    d_shared: int = 0
    """Inner width of an expert that every token uses besides; 0: none."""
    balance: float = 0.01
    """Weight of the loss that spreads tokens over experts."""
    router_z: float = 0.001
    """Weight of the loss that keeps the router's logits small."""

    def __post_init__(self) -> None:
        """Reject impossible sizes, and weights of losses below zero."""
        for name in ("d_ffn", "num_experts", "num_chosen"):
            check_size(name, getattr(self, name))
        if self.d_shared != 0:
            check_size("d_shared", self.d_shared)
        if self.num_chosen > self.num_experts:
            raise ValueError(
                f"num_chosen must be at most num_experts = {self.num_experts}, got "
                f"{self.num_chosen}"
            )
        if self.d_ffn % self.num_chosen:
            raise ValueError(
                f"d_ffn must be a multiple of num_chosen = {self.num_chosen}, got {self.d_ffn}"
            )
        for name in ("balance", "router_z"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")

    @property
    def d_expert(self) -> int:
        """Inner width of an expert."""
        return self.d_ffn // self.num_chosen


for _kind in (
    Kind("swiglu", "ffn", SwiGLUOptions, "mixerloop.model.ffns.swiglu:SwiGLU"),
    Kind("experts", "ffn", ExpertsOptions, "mixerloop.model.ffns.experts:Experts"),
):
    register(_kind)
