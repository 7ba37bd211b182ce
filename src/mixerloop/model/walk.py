"""The walk: the occurrences of a schedule in order, over one residual.

It is written once. The model, its loss, the scorer, transport and the model for `transformers` give
it a function that runs an occurrence, and read what they need of the result.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from mixerloop.model.lens import NO_LOOKS, Look, Looks
from mixerloop.model.passes import PassHooks
from mixerloop.model.sublayer import CoupledLoss, Losses, Output, State
from mixerloop.schedule import Occurrence, Schedule

Residual = Float[Tensor, "batch seq d_model"]
States = Mapping[Occurrence, State]
Kept = tuple[Residual | None, ...]
"""The tensor that each pass rule keeps while a pass is open."""
RunOccurrence = Callable[[Occurrence, Residual, State | None, Look | None], Output]
Statistics = Mapping[tuple[Occurrence, str], Tensor]
"""The statistics of coupled losses, by the occurrence and the name of the loss."""
NO_STATISTICS: Statistics = {}


class Walked(NamedTuple):
    """What a walk returns."""

    residual: Residual
    states: dict[Occurrence, State]
    """After the last token; empty for a walk that was given no states."""
    losses: Losses
    """The auxiliary losses, each summed over the occurrences."""
    kept: Kept
    """For a walk over the next part of the same schedule."""
    statistics: dict[tuple[Occurrence, str], Tensor]
    """Those of the tokens of this walk."""

    def then(self, later: "Walked") -> "Walked":
        """This walk and the walk over the next part of the schedule as a single walk."""
        losses = dict(self.losses)
        for name, loss in later.losses.items():
            _add(losses, name, loss)
        return later._replace(
            states=self.states | later.states,
            losses=losses,
            statistics=self.statistics | later.statistics,
        )


def walk(
    run: RunOccurrence,
    residual: Residual,
    schedule: Schedule,
    *,
    rules: Sequence[PassHooks] = (),
    states: States | None = None,
    kept: Kept | None = None,
    looks: Looks = NO_LOOKS,
    statistics: Statistics = NO_STATISTICS,
) -> Walked:
    """Run occurrences in order.

    With `states` each occurrence starts from its own state. A walk without `kept` begins at the
    embedding; a walk over a later part of a schedule is given the `kept` of the part before. Rules
    are nested: the first rule opens first and closes last. `statistics` take the place of those of
    this walk's tokens in coupled losses.
    """
    held = list(kept) if kept is not None else [rule.start(residual) for rule in rules]
    new_states: dict[Occurrence, State] = {}
    losses: Losses = {}
    own_statistics: dict[tuple[Occurrence, str], Tensor] = {}
    for occurrence in schedule:
        for index, rule in enumerate(rules):
            if rule.passes.opens(occurrence):
                residual, held[index] = rule.open(residual, held[index], occurrence)
        look = looks.get(occurrence)
        if look is not None:
            residual = look("input", residual)
        output = run(occurrence, residual, None if states is None else states[occurrence], look)
        update = output.update if look is None else look("update", output.update)
        residual = residual.to(update.device) + update  # layers may be on several devices
        for name, loss in (output.losses or {}).items():
            if isinstance(loss, CoupledLoss):
                own_statistics[occurrence, name] = loss.statistic
                loss = loss.value(statistics.get((occurrence, name), loss.statistic))
            _add(losses, name, loss)
        for index in reversed(range(len(rules))):
            if rules[index].passes.closes(occurrence):
                residual, of_pass = rules[index].close(residual, held[index], occurrence)
                for name, loss in (of_pass or {}).items():
                    _add(losses, name, loss)
        if look is not None:
            residual = look("output", residual)
        if states is not None:
            new_states[occurrence] = output.state
    return Walked(residual, new_states, losses, tuple(held), own_statistics)


def _add(losses: Losses, name: str, loss: Tensor) -> None:
    losses[name] = losses[name] + loss if name in losses else loss
