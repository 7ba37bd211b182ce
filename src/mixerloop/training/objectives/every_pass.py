"""A loss after every pass, so that a model may be read out after any of them.

The loss of the last pass is the model's own, at the end of its schedule. That of an earlier pass is
of the residual where the pass closes (`early`), or of the schedule cut to so many passes (`coda`).
"""

from collections import Counter
from collections.abc import Iterator

from jaxtyping import Float, Int
from torch import Tensor

from mixerloop.kinds import EveryPassOptions, pass_shares
from mixerloop.model.accounting import Work
from mixerloop.model.passes import Passes
from mixerloop.model.sublayer import Losses
from mixerloop.model.walk import Walked
from mixerloop.schedule import (
    Occurrence,
    Schedule,
    first_passes,
    looped_layers,
    num_passes_of,
    repeated_unit,
)
from mixerloop.training.depth import Depth
from mixerloop.training.objectives.objective import NLL, Forward, Objective, Parts

Residual = Float[Tensor, "batch seq d_model"]


class PassEnds:
    """A pass rule that changes nothing and remembers the residual where each pass closes.

    Of a loop inside each layer, the last layer that repeats counts.
    """

    def __init__(self, schedule: Schedule) -> None:
        unit = repeated_unit(schedule)
        assert unit is not None, "a schedule without a loop has no earlier pass"
        self.passes = Passes.round_unit(unit, schedule)
        self._layer = looped_layers(schedule)[-1]
        self.residuals: dict[int, Residual] = {}

    def start(self, embedded: Residual) -> None:
        """Nothing is kept."""

    def open(
        self, residual: Residual, kept: Residual | None, occurrence: Occurrence
    ) -> tuple[Residual, Residual | None]:
        """Nothing happens before a pass."""
        return residual, kept

    def close(
        self, residual: Residual, kept: Residual | None, occurrence: Occurrence
    ) -> tuple[Residual, Losses | None]:
        """Remember the residual."""
        if occurrence.layer == self._layer:
            self.residuals[occurrence.pass_index] = residual
        return residual, None


class EveryPass(Objective):
    """The weighted mean of the losses after each pass."""

    def __init__(self, options: EveryPassOptions) -> None:
        self.options = options

    def __call__(
        self, forward: Forward, tokens: Int[Tensor, "batch seq"], labels: Int[Tensor, "batch seq"]
    ) -> Parts:
        """A pass of weight zero is not read out."""
        shares = self._shares(forward.depth)
        walked, earlier = self._residuals(forward, tokens, shares)
        reported: dict[str, Tensor] = {}
        loss: Tensor | None = None
        for number, residual in {**earlier, len(shares) - 1: walked.residual}.items():
            is_last = number == len(shares) - 1
            if not shares[number] and not is_last:
                continue
            nll = forward.nll(residual, labels)
            reported[f"{NLL}.pass{number}"] = nll.detach()
            if is_last:
                reported[NLL] = nll.detach()
            if shares[number]:
                weighted = shares[number] * nll
                loss = weighted if loss is None else loss + weighted
        assert loss is not None
        return forward.with_auxiliary(loss, walked, reported)

    def work(self, depth: Depth) -> Work:
        """The walk, what schedules cut short run besides, and a readout for each loss."""
        shares = self._shares(depth)
        branches: Schedule = ()
        if self.options.readout == "coda":
            for number, shared in _cuts(depth.schedule, shares):
                branches += first_passes(depth.schedule, number + 1)[shared:]
        readouts = 1 + sum(share > 0 for share in shares[:-1])
        return Work(with_grad=depth.schedule + branches, readouts=readouts)

    def check(self, depth: Depth) -> None:
        """The schedule must be a regular loop, and all of its passes have gradients."""
        if depth.no_grad:
            raise ValueError("train.backprop cuts off gradients that every_pass needs")
        self._shares(depth)
        try:
            unit = repeated_unit(depth.schedule)
            if unit in ("mixer", "ffn", "block"):
                _check_equal_passes(depth.schedule)
        except ValueError as error:
            raise ValueError(f"train.objective.kind = every_pass: {error}") from None

    def _shares(self, depth: Depth) -> tuple[float, ...]:
        try:
            return pass_shares(self.options.weights, num_passes_of(depth.schedule))
        except ValueError as error:
            raise ValueError(f"train.objective.{error}") from None

    def _residuals(
        self, forward: Forward, tokens: Tensor, shares: tuple[float, ...]
    ) -> tuple[Walked, dict[int, Residual]]:
        """The whole walk, and the residuals that are read out for earlier passes."""
        schedule = forward.depth.schedule
        if not any(shares[:-1]):
            return forward.walk(tokens), {}
        if self.options.readout == "early":
            ends = PassEnds(schedule)
            walked = forward.walk(tokens, extra_rules=(ends,))
            earlier = [number for number in range(len(shares) - 1) if shares[number]]
            return walked, {number: ends.residuals[number] for number in earlier}
        trunk, at = forward.part(forward.model.embed(tokens), ()), 0
        residuals: dict[int, Residual] = {}
        for number, shared in _cuts(schedule, shares):
            trunk, at = forward.next_part(trunk, schedule[at:shared]), shared
            coda = first_passes(schedule, number + 1)[shared:]
            residuals[number] = forward.next_part(trunk, coda).residual
        return forward.next_part(trunk, schedule[at:]), residuals


def _check_equal_passes(schedule: Schedule) -> None:
    """Raise unless all layers that repeat make the same number of passes."""
    counts = Counter((one.layer, one.sublayer) for one in schedule)
    if len({count for count in counts.values() if count > 1}) > 1:
        raise ValueError(
            "the layers make different numbers of passes, so a pass does not close in all of them"
        )


def _cuts(schedule: Schedule, shares: tuple[float, ...]) -> Iterator[tuple[int, int]]:
    """Each earlier pass with a weight, and the occurrences that its cut schedule shares."""
    for number, share in enumerate(shares[:-1]):
        if share:
            yield number, next(i for i, one in enumerate(schedule) if one.pass_index > number)
