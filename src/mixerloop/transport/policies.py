"""Interventions, written as schedules whose occurrences are marked.

A policy marks every occurrence as intact, context-off or skipped. The model is not changed: a
policy is data, like the schedule it is made from.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from mixerloop.schedule import Occurrence, Schedule

Mark = Literal["intact", "context_off", "skipped"]


class Step(NamedTuple):
    """An occurrence, and whether it runs intact, context-off or not at all."""

    occurrence: Occurrence
    mark: Mark = "intact"


Policy = tuple[Step, ...]


def intact(schedule: Schedule) -> Policy:
    """The policy of the unmodified model."""
    return tuple(Step(occurrence) for occurrence in schedule)


def restored(schedule: Schedule, *, layer: int, num_intact: int) -> Policy:
    """The first `num_intact` passes of a layer's mixer intact, later passes context-off."""
    passes = mixer_passes(schedule, layer)
    if not 0 <= num_intact <= len(passes):
        raise ValueError(f"layer {layer} makes {len(passes)} mixer passes, not {num_intact}")
    return _marked(schedule, passes[num_intact:], "context_off")


def skipped(schedule: Schedule, occurrence: Occurrence) -> Policy:
    """The policy that skips one occurrence."""
    return _marked(schedule, (occurrence,), "skipped")


def swapped(schedule: Schedule, occurrence: Occurrence) -> Policy:
    """Swap an occurrence with its predecessor, the other sublayer of the same layer."""
    at = schedule.index(occurrence)
    before = schedule[at - 1]
    if at == 0 or before.layer != occurrence.layer or before.sublayer == occurrence.sublayer:
        raise ValueError(f"{occurrence}: does not follow the other sublayer of its layer")
    order = (*schedule[: at - 1], occurrence, before, *schedule[at + 1 :])
    return intact(order)


def mixer_passes(schedule: Schedule, layer: int) -> Schedule:
    """The occurrences of a layer's mixer, in order."""
    return tuple(
        occurrence
        for occurrence in schedule
        if occurrence.layer == layer and occurrence.sublayer == "mixer"
    )


def first_difference(policy: Policy, other: Policy) -> int:
    """The index of the first step in which two policies differ; their length if they are equal."""
    pairs = enumerate(zip(policy, other, strict=True))
    return next((index for index, (a, b) in pairs if a != b), len(policy))


def last_mixing(policy: Policy, mixes_tokens: Callable[[Occurrence], bool]) -> int:
    """The last step at which a token sees another token, or -1."""
    mixing = [
        at
        for at, step in enumerate(policy)
        if step.mark == "intact" and mixes_tokens(step.occurrence)
    ]
    return max(mixing, default=-1)


def _marked(schedule: Schedule, occurrences: tuple[Occurrence, ...], mark: Mark) -> Policy:
    for occurrence in occurrences:
        if occurrence not in schedule:
            raise ValueError(f"{occurrence} is not in the schedule, so nothing would happen")
    return tuple(
        Step(occurrence, mark if occurrence in occurrences else "intact") for occurrence in schedule
    )
