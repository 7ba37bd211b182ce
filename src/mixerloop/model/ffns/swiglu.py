"""The SwiGLU feed-forward network: mixes channels, each token alone."""

from jaxtyping import Float
from torch import Tensor

from mixerloop.config import Form
from mixerloop.kinds import SwiGLUOptions
from mixerloop.model.lens import UNWATCHED, Axes, Look
from mixerloop.model.projection import Projection
from mixerloop.model.sublayer import Cost, FFNModule, Output, Place, State
from mixerloop.ops.native_library import row_form
from mixerloop.ops.swiglu import swiglu


class SwiGLU(FFNModule):
    """down(silu(gate x) * up x), with gate and up in one matrix."""

    def __init__(self, options: SwiGLUOptions, place: Place) -> None:
        super().__init__()
        self.form: Form = place.form
        self.gate_up_proj = Projection(
            place.d_model, 2 * options.d_ffn, bias=options.bias, form=place.form
        )
        self.down_proj = Projection(
            options.d_ffn, place.d_model, bias=options.bias, form=place.form
        )

    def forward(
        self,
        x: Float[Tensor, "batch seq d_model"],
        state: State | None = None,
        look: Look = UNWATCHED,
    ) -> Output:
        """Each token by itself."""
        hidden = look("hidden", swiglu(self.gate_up_proj(x), form=self.form))
        return Output(self.down_proj(hidden))

    def cost(self, prefix_tokens: int) -> Cost:
        """Three matrices, whatever came before."""
        return Cost(
            projection_macs=self.gate_up_proj.weight.numel() + self.down_proj.weight.numel()
        )

    def forms(self) -> dict[str, Form]:
        """SwiGLU has a native form and torch's."""
        return {"swiglu": row_form(self.form)}

    def points(self) -> dict[str, Axes]:
        """What the last projection reads."""
        return {"hidden": ("window", "token", "d_ffn")}
