"""The loss after the last pass: the NLL of the next token, and auxiliary losses."""

from dataclasses import replace

from jaxtyping import Int
from torch import Tensor

from mixerloop.kinds.objectives import NextTokenOptions
from mixerloop.model.walk import NO_STATISTICS
from mixerloop.training.objectives.objective import NLL, Forward, Objective, Parts


class NextToken(Objective):
    """The NLL of the next token, and the auxiliary losses of the walk."""

    def __init__(self, options: NextTokenOptions | None = None) -> None:
        pass

    def __call__(
        self, forward: Forward, tokens: Int[Tensor, "batch seq"], labels: Int[Tensor, "batch seq"]
    ) -> Parts:
        """The NLL and the auxiliary losses of the walk."""
        walked = forward.walk(tokens)
        nll = forward.nll(walked.residual, labels)
        return forward.with_auxiliary(nll, walked, {NLL: nll.detach()})


class NllOnly(NextToken):
    """The NLL alone, which validation measures."""

    def __call__(
        self, forward: Forward, tokens: Int[Tensor, "batch seq"], labels: Int[Tensor, "batch seq"]
    ) -> Parts:
        """The NLL after the last pass."""
        nll = forward.nll(forward.walk(tokens).residual, labels)
        return Parts(nll, {NLL: nll.detach()})


class StatisticsOnly(Objective):
    """The statistics of coupled losses; nothing is read out, and there is no loss."""

    def __call__(
        self, forward: Forward, tokens: Int[Tensor, "batch seq"], labels: Int[Tensor, "batch seq"]
    ) -> Parts:
        """The statistics of these windows."""
        walked = replace(forward, statistics=NO_STATISTICS).walk(tokens)
        return Parts(walked.residual.new_zeros(()), {}, walked.statistics)
