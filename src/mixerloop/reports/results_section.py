"""The results of a part: a table of models, their differences, and charts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from mixerloop import paper
from mixerloop.config import PRESETS
from mixerloop.evaluation.comparison_result import Comparison
from mixerloop.evaluation.core.core_result import CoreResult
from mixerloop.evaluation.hops_result import HopsResult
from mixerloop.evaluation.nll_result import NllResult
from mixerloop.intervals import over_runs, share_over_runs
from mixerloop.measures import measure_of, score_named
from mixerloop.reports import charts
from mixerloop.reports.elements import Element, Findings, Table
from mixerloop.reports.task_section import by_difficulty
from mixerloop.results import (
    Estimate,
    PartialEstimate,
    PointEstimate,
    Result,
    estimate_text,
    p_value_text,
)
from mixerloop.studies.table import Row
from mixerloop.studies.table import Table as StudyTable
from mixerloop.transport.result import TransportResult

PAPERS_TYPE: dict[type[Result], str] = {
    CoreResult: paper.COMPUTE_DTYPE,
    TransportResult: paper.COMPUTE_DTYPE,
}
"""The compute type of the paper's measurements, by result type."""
LEFT_OUT = "is left out"
"""Marks a warning about a measure that was not taken; a study's plan says that already."""
PAPERS_DATA = "climbmix"


def results(part: StudyTable) -> Iterator[Element]:
    """The tables of a part, warnings about its comparison, and its charts."""
    yield _results_table(part)
    if part.comparison is not None:
        yield _pairs_table(part.comparison)
        warnings = [
            *(warning for warning in part.comparison.warnings if LEFT_OUT not in warning),
            *(
                f"{pair.first} and {pair.second}: {warning}"
                for pair in part.comparison.pairs
                for warning in pair.warnings
            ),
        ]
        if warnings:
            yield Findings([f"Take care: {warning}." for warning in warnings])
    yield from by_difficulty(part)
    for figure in (charts.curves(part), charts.against_cost(part)):
        if figure is not None:
            yield figure


@dataclass(frozen=True)
class _PapersRow:
    """The size and loop under which the paper prints a model."""

    size: str
    loop: str


@dataclass(frozen=True)
class _Column:
    title: str
    ours: Callable[[StudyTable], str]
    papers: Callable[[_PapersRow], str] = lambda _: ""


def _results_table(part: StudyTable) -> Table:
    """The paper's layout: a row for each model, a column for each measure."""
    columns = list(_columns(part))
    rows = [[column.ours(arm) for column in columns] for arm in part.arms.values()]
    papers = [row for arm in part.arms.values() if (row := _papers_row(arm.first)) is not None]
    rows += [[column.papers(row) for column in columns] for row in papers]
    measured_in = {kind: _types(part, kind) for kind in PAPERS_TYPE}
    otherwise = [
        f" The paper measured {measure_of(kind).label} in {PAPERS_TYPE[kind]}, and this study in "
        f"{' and '.join(sorted(types))}: the paper's figure is not shown."
        for kind, types in measured_in.items()
        if papers and types and types != {PAPERS_TYPE[kind]}
    ]
    counts = {len(arm) for arm in part.arms.values()}
    over = "seeds (Student's t)" if counts != {1} else "documents, windows or sequences"
    alone = " and, where a model has one, over documents, windows or sequences"
    note = f"Intervals are of 95 %, over {over}{alone if 1 in counts and len(counts) > 1 else ''}."
    theirs = " What is said to be in the paper is the paper's, and not ours." * bool(papers)
    return Table(
        "Results", [column.title for column in columns], rows, note + theirs + "".join(otherwise)
    )


OWN_COLUMNS = ("nll", "hops", "core", "tasks", "manipulation")
"""Scores with columns of their own, or that are shown in more detail."""


def _compared_score(part: StudyTable, name: str, arm: StudyTable) -> str:
    """The score of a measure that the report knows from the registry only."""
    assert part.comparison is not None
    score = score_named(name)
    values = [
        compared.scores[name] for compared in part.comparison.arms if compared.name == arm.first.arm
    ]
    return f"{score.scale * values[0]:.{score.digits}f}" if values else ""


def _columns(part: StudyTable) -> Iterator[_Column]:
    def same_type(
        papers: Callable[[_PapersRow], str], kind: type[Result]
    ) -> Callable[[_PapersRow], str]:
        """The paper's figure, if our runs were measured in the paper's compute type."""
        agrees = _types(part, kind) == {PAPERS_TYPE[kind]}
        return papers if agrees else lambda _: ""

    yield _Column("model", lambda arm: arm.first.arm, lambda row: f"{row.loop} in the paper")
    yield _Column("seeds", lambda arm: str(len(arm)), lambda row: "1")
    yield _Column("parameters", lambda arm: f"{arm.first.parameters:,}")
    yield _Column("MFLOP/token", lambda arm: f"{arm.first.flops_per_token / 1e6:,.1f}")
    if part.results(NllResult):
        yield _Column(
            score_named("nll").title,
            lambda arm: _shown(arm.estimate(NllResult, "nll")),
            lambda row: f"{paper.HELD_OUT_NLL[row.size][row.loop]:.3f}",
        )
    if _has_bytes(part):
        yield _Column("bits/byte", lambda arm: _shown(arm.estimate(NllResult, "bits_per_byte")))
    for number in _hops(part):
        yield _Column(f"{number} hop{'s' * (number > 1)}", partial(_accuracy, hops=number))
    if part.results(CoreResult):
        yield _Column(
            score_named("core").title,
            lambda arm: _core([result.core_v1 for result in arm.results(CoreResult)]),
            same_type(lambda row: f"{paper.CORE[row.size, row.loop].core_mean:.2f}", CoreResult),
        )
        yield _Column(
            score_named("manipulation").title,
            lambda arm: _core([result.manipulation_v1 for result in arm.results(CoreResult)]),
            same_type(
                lambda row: f"{paper.CORE[row.size, row.loop].manipulation_mean:.2f}", CoreResult
            ),
        )
    if part.comparison is not None:
        for name in part.comparison.arms[0].scores:
            if name.partition("_")[0] not in OWN_COLUMNS:
                yield _Column(score_named(name).title, partial(_compared_score, part, name))
    if part.results(TransportResult):
        papers = same_type(_papers_later_gain, TransportResult)
        yield _Column("later gain, nats", _later_gain, papers)
    yield _Column("training, s", _seconds)


def _types(part: StudyTable, kind: type[Result]) -> set[str]:
    """The compute types in which the runs of a part were measured."""
    return {str(result.provenance.compute_dtype) for result in part.results(kind)}


def _hops(part: StudyTable) -> list[int]:
    return sorted(
        {hop.hops for result in part.results(HopsResult) for hop in result.accuracy_by_hop}
    )


def _accuracy(arm: StudyTable, hops: int) -> str:
    accuracies = [
        hop.accuracy
        for result in arm.results(HopsResult)
        for hop in result.accuracy_by_hop
        if hop.hops == hops
    ]
    return estimate_text(share_over_runs(accuracies), ".3f") if accuracies else ""


def _core(scores: Sequence[Estimate | None]) -> str:
    """A score times 100; empty if a run left out tasks."""
    return shown_over_runs([score.scaled(100) for score in scores if score is not None], ".2f")


def _later_gain(arm: StudyTable) -> str:
    looped = [result for result in arm.results(TransportResult) if len(result.target_gain) > 1]
    return shown_over_runs([result.later_gain for result in looped], "+.4f")


def _papers_later_gain(row: _PapersRow) -> str:
    figures = paper.TRANSPORT.get((row.size, row.loop))
    return "" if figures is None else f"{figures.later_gain:+.3f}"


def _seconds(arm: StudyTable) -> str:
    times = [run.seconds for run in arm if run.seconds is not None]
    return f"{sum(times) / len(times):,.0f}" if times else ""


def _has_bytes(part: StudyTable) -> bool:
    results = part.results(NllResult)
    return bool(results) and all(result.bits_per_byte is not None for result in results)


def _shown(nll: Estimate | PointEstimate | None) -> str:
    return "" if nll is None else estimate_text(nll, ".4f")


def _papers_row(row: Row) -> _PapersRow | None:
    """The paper's model of the same size, loop and data; None if the paper has no such model."""
    if not row.data.startswith(PAPERS_DATA):
        return None
    for size, loops in paper.HELD_OUT_NLL.items():
        same = all(
            getattr(row, key) == getattr(PRESETS[size], key)
            for key in ("num_layers", "d_model", "vocab_size")
        )
        if same and row.arm in loops:
            return _PapersRow(size, row.arm)
    return None


def partly_over_runs(estimates: Sequence[PartialEstimate], how: str) -> str:
    """`shown_over_runs` of the estimates that are defined."""
    defined = [estimate.estimate for estimate in estimates]
    return shown_over_runs([estimate for estimate in defined if estimate is not None], how)


def shown_over_runs(estimates: Sequence[Estimate | PointEstimate], how: str) -> str:
    """The mean over runs with its interval, in the format `how`; empty without runs."""
    mean = over_runs(estimates)
    return "" if mean is None else estimate_text(mean, how)


def _pairs_table(comparison: Comparison) -> Table:
    pairs = comparison.pairs
    rows = []
    for pair in pairs:
        for name, difference in pair.measures.items():
            score = score_named(name)
            value, low, high = (
                f"{score.scale * x:+.{score.digits}f}"
                for x in (difference.value, difference.lower, difference.upper)
            )
            models = f"{pair.first} minus {pair.second}"
            p_values = map(p_value_text, (difference.p_value, difference.holm_p_value))
            rows.append(
                [models, score.title, value, f"{low} to {high}", *p_values, difference.verdict]
            )
    columns = ["models", "measure", "difference", "95 % interval", "p", "p, Holm", "verdict"]
    seeds = "; or ".join(sorted({pair.seeds for pair in pairs}))
    note = (
        f"{seeds[:1].upper()}{seeds[1:]}. Each interval is at 95 % by itself. Resolved: p, "
        "corrected by Holm's method for all differences on this page, is below 0.05. A verdict "
        "takes three seeds."
    )
    return Table("Differences", columns, rows, note)


def loss_parts(part: StudyTable) -> Iterator[Element]:
    """What training minimised, where that is more than the NLL of the next token."""
    of_models = {
        name: [row.loss_parts for row in arm.rows if row.loss_parts]
        for name, arm in part.arms.items()
    }
    of_models = {name: seeds for name, seeds in of_models.items() if seeds}
    names = list(dict.fromkeys(key for seeds in of_models.values() for one in seeds for key in one))
    if not names:
        return
    rows = []
    for name, seeds in of_models.items():
        means = (_mean([one[key] for one in seeds if key in one]) for key in names)
        rows.append([name, *means])
    titles = ["NLL" if key == "loss.nll" else key.removeprefix("loss.") for key in names]
    yield Table(
        "Parts of the training loss",
        ["model", *titles],
        rows,
        "Means over the last tenth of the steps and over the seeds, without intervals. The NLL "
        "compares with the loss of a model that is not listed.",
    )


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.4f}" if values else ""
