"""Interventions, as schedules whose occurrences are marked.

A policy says of every occurrence whether it runs as it is, without context, or not at all. The
model is not touched: a policy is data, like the schedule it was made from.
"""

from typing import Literal, NamedTuple

from mixerloop.schedule import Occurrence, Schedule

Mark = Literal["intact", "context_off", "skipped"]


class Step(NamedTuple):
    """An occurrence and how it runs."""

    occurrence: Occurrence
    mark: Mark = "intact"

    @property
    def mixes_tokens(self) -> bool:
        """Whether a token can see another one here."""
        return self.occurrence.sublayer == "mixer" and self.mark == "intact"


Policy = tuple[Step, ...]


def intact(schedule: Schedule) -> Policy:
    """The model as it is."""
    return tuple(Step(occurrence) for occurrence in schedule)


def restored(schedule: Schedule, *, layer: int, num_intact: int) -> Policy:
    """The first passes of a layer's mixer as they are, the later ones without context."""
    passes = mixer_passes(schedule, layer)
    if not 0 <= num_intact <= len(passes):
        raise ValueError(f"layer {layer} makes {len(passes)} mixer passes, not {num_intact}")
    return _marked(schedule, passes[num_intact:], "context_off")


def skipped(schedule: Schedule, occurrence: Occurrence) -> Policy:
    """One occurrence left out."""
    return _marked(schedule, (occurrence,), "skipped")


def swapped(schedule: Schedule, occurrence: Occurrence) -> Policy:
    """An occurrence before the one that precedes it, which must be of the same layer."""
    at = schedule.index(occurrence)
    before = schedule[at - 1]
    if at == 0 or before.layer != occurrence.layer or before.sublayer == occurrence.sublayer:
        raise ValueError(f"{occurrence}: does not follow the other sublayer of its layer")
    order = (*schedule[: at - 1], occurrence, before, *schedule[at + 1 :])
    return intact(order)


def mixer_passes(schedule: Schedule, layer: int) -> Schedule:
    """The occurrences of a layer's mixer, in order."""
    return tuple(one for one in schedule if one.layer == layer and one.sublayer == "mixer")


def first_difference(policy: Policy, other: Policy) -> int:
    """The first step in which two policies differ; their length if they do not."""
    pairs = enumerate(zip(policy, other, strict=True))
    return next((index for index, (a, b) in pairs if a != b), len(policy))


def last_mixing(policy: Policy) -> int:
    """The last step at which a token sees another, or -1."""
    return max((at for at, step in enumerate(policy) if step.mixes_tokens), default=-1)


def _marked(schedule: Schedule, occurrences: tuple[Occurrence, ...], mark: Mark) -> Policy:
    for occurrence in occurrences:
        if occurrence not in schedule:
            raise ValueError(f"{occurrence} is not in the schedule, so nothing would happen")
    return tuple(Step(one, mark if one in occurrences else "intact") for one in schedule)
