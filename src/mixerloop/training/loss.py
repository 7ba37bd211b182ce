"""The model with its loss: what is trained, and what the held-out NLL is measured with."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from mixerloop.model.looped_lm import LoopedLM
from mixerloop.ops.sliced_cross_entropy import sliced_cross_entropy


class SummedLoss(nn.Module):
    """The summed loss of the scored tokens; the logits of all of them never exist at once."""

    def __init__(self, model: LoopedLM, *, recompute: bool = False) -> None:
        super().__init__()
        self.model, self.recompute = model, recompute

    def forward(
        self, tokens: Int[Tensor, "batch seq"], labels: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, ""]:
        """Nats, summed."""
        model = self.model
        recompute = self.recompute and self.training
        residual, _ = model.walk(model.embed(tokens), model.schedule, recompute=recompute)
        return sliced_cross_entropy(
            x=model.final_norm(residual).flatten(0, 1),
            weight=model.embedding.weight,
            labels=labels.flatten(),
            form=model.form,
        )
