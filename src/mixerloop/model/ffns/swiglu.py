"""The SwiGLU feed-forward network: mixes channels, each token alone."""

from jaxtyping import Float
from torch import Tensor, nn

from mixerloop.config import Form, ModelConfig
from mixerloop.model.sublayer import Cost
from mixerloop.ops.swiglu import swiglu


class SwiGLU(nn.Module):
    """down(silu(gate x) * up x), with gate and up in one matrix."""

    def __init__(self, config: ModelConfig, *, form: Form) -> None:
        super().__init__()
        self.form: Form = form
        self.gate_up_proj = nn.Linear(config.d_model, 2 * config.d_ffn, bias=False)
        self.down_proj = nn.Linear(config.d_ffn, config.d_model, bias=False)

    def forward(self, x: Float[Tensor, "batch seq d_model"]) -> Float[Tensor, "batch seq d_model"]:
        """The update to the residual."""
        return self.down_proj(swiglu(self.gate_up_proj(x), form=self.form))

    def cost(self) -> Cost:
        """Three matrices; nothing is remembered."""
        return Cost(
            projection_macs=self.gate_up_proj.weight.numel() + self.down_proj.weight.numel()
        )
