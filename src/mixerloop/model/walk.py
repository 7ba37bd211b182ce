"""The walk: the occurrences of a schedule in order, over one residual.

It is written once. The model, its loss, the scorer, transport and the model for `transformers` give
it a function that runs an occurrence, and read what they need of the result.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from jaxtyping import Float
from torch import Tensor

from mixerloop.model.passes import PassHooks
from mixerloop.model.sublayer import Losses, Output, State
from mixerloop.schedule import Occurrence, Schedule

Residual = Float[Tensor, "batch seq d_model"]
States = Mapping[Occurrence, State]
Kept = tuple[Residual | None, ...]
"""The tensor that each pass rule keeps while a pass is open."""
RunOccurrence = Callable[[Occurrence, Residual, State | None], Output]
TapPoint = Literal["input", "update"]
"""The residual that enters an occurrence, and the update that the occurrence adds to it."""
Taps = Mapping[tuple[Occurrence, TapPoint], Callable[[Tensor], Tensor]]
"""Functions that see an activation at its address; the tensor they return takes its place."""
NO_TAPS: Taps = {}


class Walked(NamedTuple):
    """The end of a walk."""

    residual: Residual
    states: dict[Occurrence, State]
    """After the last token; empty for a walk that was given no states."""
    losses: Losses
    """The auxiliary losses, each summed over the occurrences."""
    kept: Kept
    """For a walk over the next part of the same schedule."""


def walk(
    run: RunOccurrence,
    residual: Residual,
    schedule: Schedule,
    *,
    rules: Sequence[PassHooks] = (),
    states: States | None = None,
    kept: Kept | None = None,
    taps: Taps = NO_TAPS,
) -> Walked:
    """Run occurrences in order.

    With `states` each occurrence starts from its own state. A walk without `kept` begins at the
    embedding; a walk over a later part of a schedule is given the `kept` of the part before.
    """
    held = list(kept) if kept is not None else [rule.start(residual) for rule in rules]
    new_states: dict[Occurrence, State] = {}
    losses: Losses = {}
    for occurrence in schedule:
        if tap := taps.get((occurrence, "input")):
            residual = _tapped(tap, residual, occurrence)
        for index, rule in enumerate(rules):
            if rule.passes.opens(occurrence):
                residual, held[index] = rule.open(residual, held[index], occurrence)
        output = run(occurrence, residual, None if states is None else states[occurrence])
        update = output.update
        if tap := taps.get((occurrence, "update")):
            update = _tapped(tap, update, occurrence)
        residual = residual.to(update.device) + update  # layers may be on several devices
        if output.losses:
            _add(losses, output.losses)
        for index, rule in enumerate(rules):
            if rule.passes.closes(occurrence):
                residual, of_pass = rule.close(residual, held[index], occurrence)
                _add(losses, of_pass or {})
        if states is not None:
            new_states[occurrence] = output.state
    return Walked(residual, new_states, losses, tuple(held))


def check_taps(schedule: Schedule, taps: Taps, context_off: Collection[Occurrence]) -> None:
    """Reject an address at which nothing would happen."""
    if isinstance(context_off, str) or not isinstance(context_off, Collection):
        raise TypeError(f"context_off must be a collection of occurrences, got {context_off!r}")
    if not isinstance(taps, Mapping) or not all(isinstance(key, tuple) for key in taps):
        raise TypeError(f"taps must map an occurrence and a point to a function, got {taps!r}")
    for address, tap in taps.items():
        if not callable(tap):
            raise TypeError(f"taps must map to functions, got {tap!r} for {address}")
    known = set(schedule)
    for occurrence in (*context_off, *(occurrence for occurrence, _ in taps)):
        if occurrence not in known:
            raise ValueError(f"{occurrence} is not in the schedule, so nothing would happen")
    for occurrence in context_off:
        if occurrence.sublayer != "mixer":
            raise ValueError(f"{occurrence}: only a mixer has context to switch off")
    for occurrence, point in taps:
        if point not in get_args(TapPoint):
            known_points = ", ".join(get_args(TapPoint))
            raise ValueError(f"{occurrence}: no tap point '{point}'; known: {known_points}")


def _add(losses: Losses, more: Losses) -> None:
    for name, loss in more.items():
        losses[name] = losses[name] + loss if name in losses else loss


def _tapped(tap: Callable[[Tensor], Tensor], x: Tensor, occurrence: Occurrence) -> Tensor:
    replaced = tap(x)
    if not isinstance(replaced, Tensor) or replaced.shape != x.shape:
        raise ValueError(f"{occurrence}: a tap must return a tensor of the shape it was given")
    return replaced
