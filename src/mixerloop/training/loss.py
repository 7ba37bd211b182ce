"""The model with its loss, as training and the validation NLL compute it."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from mixerloop.model.looped_lm import LoopedLM
from mixerloop.ops.sliced_cross_entropy import NOT_SCORED


class SummedLoss(nn.Module):
    """The summed loss of the scored tokens.

    In training mode the loss includes the auxiliary losses of sublayers and pass rules. In
    evaluation mode it is the NLL alone. An auxiliary loss is a mean over tokens. It is multiplied
    by the number of scored tokens, so its weight does not depend on how a batch is cut.
    """

    def __init__(self, model: LoopedLM, *, recompute: bool = False) -> None:
        super().__init__()
        self.model, self.recompute = model, recompute

    def forward(
        self, tokens: Int[Tensor, "batch seq"], labels: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, ""]:
        """The loss in nats, summed over the scored tokens of these windows."""
        model = self.model
        recompute = self.recompute and self.training
        walked = model.walk(model.embed(tokens), model.schedule, recompute=recompute)
        loss = model.summed_nll(walked.residual.flatten(0, 1), labels.flatten())
        if walked.losses and self.training:
            num_scored = (labels != NOT_SCORED).sum()
            for _, auxiliary in sorted(walked.losses.items()):
                loss = loss + num_scored * auxiliary
        return loss
