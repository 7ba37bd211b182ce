"""Which experts each pass chooses: the routing divergence of a part's models."""

from collections.abc import Iterator, Sequence

from mixerloop.reports.elements import Element, Table
from mixerloop.reports.results_section import shown_over_runs
from mixerloop.studies.table import Table as StudyTable
from mixerloop.transport.routing_result import RoutingResult


def routing(part: StudyTable) -> Iterator[Element]:
    """A table of the tokens that change their experts, for models that loop an ffn with experts."""
    measured = {name: arm.results(RoutingResult) for name, arm in part.arms.items()}
    rows = [row for name, seeds in measured.items() if seeds for row in _rows(name, seeds)]
    if not rows:
        return
    chances = {
        f"{layer.moved_by_chance:.0%}"
        for seeds in measured.values()
        for result in seeds
        for layer in result.layers
    }
    yield Table(
        "Tokens that change their experts from pass to pass",
        ["model", "layer", "passes", "tokens with other experts", "experts that are new"],
        rows,
        "Means of the seeds. Intervals are of 95 %, over seeds (Student's t), or windows where "
        "there is one seed. A router that draws at random has "
        f"{' or '.join(sorted(chances))} new experts.",
    )


def _rows(name: str, seeds: Sequence[RoutingResult]) -> Iterator[list[str]]:
    for index, layer in enumerate(seeds[0].layers):
        for step in range(len(layer.changed)):
            of_seeds = [result.layers[index] for result in seeds]
            yield [
                name,
                str(layer.layer),
                f"{step + 1} to {step + 2}",
                shown_over_runs([one.changed[step] for one in of_seeds], ".1%"),
                shown_over_runs([one.moved[step] for one in of_seeds], ".1%"),
            ]
