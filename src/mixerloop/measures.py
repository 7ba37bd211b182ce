"""The measures that architectures are compared by: how each is named, printed and ordered.

A comparison has a score of each measure. CORE's scores have the version of the random baselines
behind their name: `core_v1`.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A score of a model."""

    title: str
    scale: int
    """What a score is multiplied by in print."""
    digits: int
    """Behind the point, in print."""
    higher_is_better: bool
    resampled: str
    """The unit that intervals resample."""


MEASURES = {
    "nll": Measure(
        title="held-out NLL", scale=1, digits=4, higher_is_better=False, resampled="documents"
    ),
    "hops": Measure(
        title="right answers", scale=1, digits=4, higher_is_better=True, resampled="sequences"
    ),
    "core": Measure(title="CORE", scale=100, digits=2, higher_is_better=True, resampled="examples"),
    "tasks": Measure(
        title="mean of the tasks", scale=100, digits=2, higher_is_better=True, resampled="examples"
    ),
    "manipulation": Measure(
        title="Manip.", scale=100, digits=2, higher_is_better=True, resampled="examples"
    ),
}


def measure_named(score: str) -> Measure:
    """The measure of a score of a comparison, with its version in the title."""
    name, _, version = score.partition("_")
    measure = MEASURES[name]
    return replace(measure, title=f"{measure.title} ({version})") if version else measure
