"""The registry of measures: every kind of result that a run can have.

A new measure is one file with a result type and the functions named below, and one call of
`register`. Study files, result files, comparisons, tables and reports read the registry. It names
types and functions as "module:name", which are loaded when they are first used: the registry loads
no torch.
"""

import importlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mixerloop.parsing import suggest
from mixerloop.results import Over, Result
from mixerloop.schedule import Schedule, Sublayer


@dataclass(frozen=True, kw_only=True)
class Score:
    """A number that architectures are compared by: how it is named, printed and ordered."""

    name: str
    """The name in comparisons. CORE's scores add the version of the baselines, as in `core_v1`."""
    title: str
    scale: int = 1
    """Printed scores are multiplied by this factor."""
    digits: int = 4
    """Printed digits after the decimal point."""
    higher_is_better: bool
    resampled: Over
    """The unit that intervals resample."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A named kind of result: its type, its files, and how it is measured and compared."""

    name: str
    """The name in study files; the result file is NAME.json."""
    label: str
    """The name in sentences about the measure."""
    result: str
    """The result type, a dataclass derived from `mixerloop.results.Result`."""
    take: str
    """The function that measures a run of a study and saves the result; `studies.measuring.Take`
    is its signature."""
    command: str
    """The command that measures a run, without the run."""
    check: str | None = None
    """The function that raises, before a model is trained, if a study cannot take the measure;
    `studies.measuring.Check` is its signature."""
    details: str | None = None
    """The file or folder of the scores of each unit, beside the result file."""
    details_begin: str = ""
    """The beginning of every detail file, by which a file without its result is recognised."""
    units: str | None = None
    """The function that reads those scores for comparisons, `evaluation.units.ReadUnits`; None for
    a measure that is not compared."""
    scores: tuple[Score, ...] = ()
    """The scores that `units` returns."""
    of_repeated: Sublayer | None = None
    """The sublayer that a schedule must repeat for a study to take the measure; None for any."""
    warn_if_unmeasured: bool = False
    """Whether a comparison mentions the measure even if no run has a result of it."""

    @property
    def file(self) -> str:
        """The name of the result file."""
        return f"{self.name}.json"

    def applies_to(self, schedule: Schedule) -> bool:
        """Whether a study measures models with this schedule."""
        return self.of_repeated is None or any(
            occurrence.sublayer == self.of_repeated and occurrence.pass_index > 0
            for occurrence in schedule
        )

    def details_in(self, folder: Path) -> Path:
        """The path of the details, which are beside the result file in a folder."""
        assert self.details is not None, f"{self.name} has no details"
        return folder / self.details

    def result_type(self) -> type[Result]:
        """Import the result type."""
        return load(self.result)


MEASURES: dict[str, Measure] = {}
"""By name, in the order in which comparisons list them."""


def register(measure: Measure) -> Measure:
    """Add a measure to the registry; raises if its name or one of its scores exists."""
    taken = {score.name for registered in MEASURES.values() for score in registered.scores}
    if measure.name in MEASURES or taken & {score.name for score in measure.scores}:
        raise ValueError(f"measure '{measure.name}': the measure or one of its scores exists")
    MEASURES[measure.name] = measure
    return measure


def measure_named(name: str) -> Measure:
    """The registered measure of a name; raises for an unknown name."""
    if name not in MEASURES:
        raise ValueError(f"unknown measure '{name}'; {suggest(name, MEASURES)}")
    return MEASURES[name]


def measure_of(kind: type[Result]) -> Measure:
    """The measure of a result type."""
    path = f"{kind.__module__}:{kind.__qualname__}"
    for measure in MEASURES.values():
        if measure.result == path:
            return measure
    raise ValueError(f"{path}: no measure has this result type; register one")


def score_named(name: str) -> Score:
    """The score of a name in comparisons; a version such as `v1` becomes part of the title."""
    base, _, version = name.partition("_")
    scores = {score.name: score for measure in MEASURES.values() for score in measure.scores}
    score = scores.get(name)
    if score is not None:
        return score
    if base not in scores:
        raise ValueError(f"unknown score '{name}'; {suggest(name, scores)}")
    return replace(scores[base], title=f"{scores[base].title} ({version})")


def load(path: str) -> Any:
    """The object that "module:name" names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


register(
    Measure(
        name="core",
        label="CORE",
        result="mixerloop.evaluation.core.core_result:CoreResult",
        take="mixerloop.studies.measuring:take_core",
        check="mixerloop.studies.measuring:check_core",
        command="mixerloop evaluate core",
        details="core",
        units="mixerloop.evaluation.core.core_units:read_core_units",
        scores=(
            Score(
                name="core",
                title="CORE",
                scale=100,
                digits=2,
                higher_is_better=True,
                resampled="examples",
            ),
            Score(
                name="tasks",
                title="mean of the tasks",
                scale=100,
                digits=2,
                higher_is_better=True,
                resampled="examples",
            ),
            Score(
                name="manipulation",
                title="Manip.",
                scale=100,
                digits=2,
                higher_is_better=True,
                resampled="examples",
            ),
        ),
        warn_if_unmeasured=True,
    )
)
register(
    Measure(
        name="nll",
        label="NLL",
        result="mixerloop.evaluation.nll_result:NllResult",
        take="mixerloop.studies.measuring:take_nll",
        check="mixerloop.studies.measuring:check_nll",
        command="mixerloop evaluate nll",
        details="nll.jsonl",
        details_begin='{"document": 0, ',
        units="mixerloop.evaluation.nll_result:read_nll_units",
        scores=(
            Score(name="nll", title="held-out NLL", higher_is_better=False, resampled="documents"),
        ),
        warn_if_unmeasured=True,
    )
)
register(
    Measure(
        name="hops",
        label="hops",
        result="mixerloop.evaluation.hops_result:HopsResult",
        take="mixerloop.studies.measuring:take_hops",
        check="mixerloop.studies.measuring:check_hops",
        command="mixerloop evaluate hops",
        details="hops.jsonl",
        details_begin='{"sequence": 0, ',
        units="mixerloop.evaluation.hops_result:read_hops_units",
        scores=(
            Score(name="hops", title="right answers", higher_is_better=True, resampled="sequences"),
        ),
    )
)
register(
    Measure(
        name="task",
        label="the accuracy on a synthetic task",
        result="mixerloop.evaluation.task_result:TaskResult",
        take="mixerloop.studies.measuring:take_task",
        check="mixerloop.studies.measuring:check_task",
        command="mixerloop evaluate task",
        details="task.jsonl",
        details_begin='{"sequence": 0, ',
        units="mixerloop.evaluation.task_result:read_task_units",
        scores=(
            Score(name="task", title="right answers", higher_is_better=True, resampled="sequences"),
        ),
    )
)
register(
    Measure(
        name="transport",
        label="transport",
        result="mixerloop.transport.result:TransportResult",
        take="mixerloop.studies.measuring:take_transport",
        check="mixerloop.studies.measuring:check_transport",
        command="mixerloop transport",
    )
)
register(
    Measure(
        name="routing",
        label="routing divergence",
        result="mixerloop.transport.routing_result:RoutingResult",
        take="mixerloop.studies.measuring:take_routing",
        check="mixerloop.studies.measuring:check_routing",
        command="mixerloop evaluate routing",
        of_repeated="ffn",
    )
)
