"""A model and its objective as one module, which is what ranks share."""

from jaxtyping import Int
from torch import Tensor, nn

from mixerloop.model.looped_lm import LoopedLM
from mixerloop.model.walk import NO_STATISTICS, Statistics
from mixerloop.ops.sliced_cross_entropy import NOT_SCORED
from mixerloop.training.depth import Depth
from mixerloop.training.objectives.next_token import NextToken
from mixerloop.training.objectives.objective import Forward, Objective, Parts


class Loss(nn.Module):
    """The loss of some windows, as an objective says."""

    def __init__(self, model: LoopedLM, *, recompute: bool = False) -> None:
        super().__init__()
        self.model, self.recompute = model, recompute

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        labels: Int[Tensor, "batch seq"],
        *,
        objective: Objective | None = None,
        depth: Depth | None = None,
        weight: float | None = None,
        statistics: Statistics = NO_STATISTICS,
    ) -> Parts:
        """Sums over the scored tokens; by default next-token, under the model's own schedule.

        `weight` is the number of scored tokens that these windows stand for; by default their own.
        """
        forward = Forward(
            model=self.model,
            depth=Depth(self.model.schedule) if depth is None else depth,
            recompute=self.recompute,
            weight=(labels != NOT_SCORED).sum() if weight is None else weight,
            statistics=statistics,
        )
        return (NextToken() if objective is None else objective)(forward, tokens, labels)
