"""The results of a part: a table of models, their differences, and what they cost."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mixerloop import paper
from mixerloop.config import PRESETS
from mixerloop.measures import measure_named
from mixerloop.reports import charts
from mixerloop.reports.blocks import Block, Findings, Table
from mixerloop.reports.student_t import over_runs
from mixerloop.reports.study_results import ArmResults, PartResults

PAPERS_TITLE = {"core": "CORE", "transport": "transport"}
PAPERS_TYPE = {"core": paper.COMPUTE_DTYPE, "transport": paper.COMPUTE_DTYPE}
LEFT_OUT = "is left out"
"""In a warning about a measure that was not taken, which a study says by itself."""
PAPERS_DATA = "climbmix"


def results(part: PartResults) -> Iterator[Block]:
    """Tables first, then pictures."""
    yield _results_table(part)
    if part.comparison is not None:
        yield _pairs_table(part, part.comparison)
        names = arm_names(part)
        warnings = [
            *(one for one in part.comparison["warnings"] if LEFT_OUT not in one),
            *(
                f"{names[one['first']]} and {names[one['second']]}: {warning}"
                for one in part.comparison["pairs"]
                for warning in one["warnings"]
            ),
        ]
        if warnings:
            yield Findings([f"Take care: {warning}." for warning in warnings])
    for figure in (charts.hops(part), charts.curves(part), charts.against_cost(part)):
        if figure is not None:
            yield figure


@dataclass(frozen=True)
class _PapersRow:
    """What the paper prints of a model of the same size and loop."""

    size: str
    loop: str


@dataclass(frozen=True)
class _Column:
    title: str
    ours: Callable[[ArmResults], str]
    papers: Callable[[_PapersRow], str] = lambda _: ""


def _results_table(part: PartResults) -> Table:
    """The paper's layout: a row for each model, a column for each measure."""
    columns = list(_columns(part))
    rows = [[column.ours(arm) for column in columns] for arm in part.arms]
    papers = [row for arm in part.arms if (row := _papers_row(part, arm)) is not None]
    rows += [[column.papers(row) for column in columns] for row in papers]
    measured_in = {what: _types(part, what) for what in PAPERS_TYPE}
    otherwise = [
        f" The paper measured {PAPERS_TITLE[what]} in {PAPERS_TYPE[what]}, and this study in "
        f"{' and '.join(sorted(types))}: the paper's figure is not shown."
        for what, types in measured_in.items()
        if papers and types and types != {PAPERS_TYPE[what]}
    ]
    counts = {len(arm.runs) for arm in part.arms}
    over = "seeds (Student's t)" if counts != {1} else "documents, windows or sequences"
    alone = " and, where a model has one, over documents, windows or sequences"
    note = f"Intervals are of 95 %, over {over}{alone if 1 in counts and len(counts) > 1 else ''}."
    theirs = " What is said to be in the paper is the paper's, and not ours." * bool(papers)
    return Table(
        "Results", [column.title for column in columns], rows, note + theirs + "".join(otherwise)
    )


def _columns(part: PartResults) -> Iterator[_Column]:
    measured = {name for arm in part.arms for run in arm.runs for name in run.results}

    def same_type(papers: Callable[[_PapersRow], str], what: str) -> Callable[[_PapersRow], str]:
        """The paper's figure, if ours were measured in the type of the paper's."""
        agrees = _types(part, what) == {PAPERS_TYPE[what]}
        return papers if agrees else lambda _: ""

    yield _Column("model", lambda arm: arm.name, lambda row: f"{row.loop} in the paper")
    yield _Column("seeds", lambda arm: str(len(arm.runs)), lambda row: "1")
    yield _Column("parameters", lambda arm: f"{arm.facts['parameters']:,}")
    yield _Column("MFLOP/token", lambda arm: f"{arm.facts['flops_per_token'] / 1e6:,.1f}")
    if "nll" in measured:
        yield _Column(
            "held-out NLL",
            lambda arm: _over_runs([one["nll"] for one in arm.measured("nll")], ".4f"),
            lambda row: f"{paper.HELD_OUT_NLL[row.size][row.loop]:.3f}",
        )
    if _has_bytes(part):
        yield _Column(
            "bits/byte",
            lambda arm: _over_runs([one["bits_per_byte"] for one in arm.measured("nll")], ".4f"),
        )
    for index, number in enumerate(_hops(part)):
        yield _Column(f"{number} hop{'s' * (number > 1)}", partial(_accuracy, index=index))
    if "core" in measured:
        yield _Column(
            "CORE",
            partial(_core, name="core_v1"),
            same_type(lambda row: f"{paper.CORE[row.size, row.loop].core_mean:.2f}", "core"),
        )
        yield _Column(
            "Manip.",
            partial(_core, name="manipulation_v1"),
            same_type(
                lambda row: f"{paper.CORE[row.size, row.loop].manipulation_mean:.2f}", "core"
            ),
        )
    if "transport" in measured:
        papers = same_type(_papers_later_gain, "transport")
        yield _Column("later gain, nats", _later_gain, papers)
    yield _Column("training, s", _seconds)


def _types(part: PartResults, what: str) -> set[str]:
    """The types in which the runs of a part were measured."""
    found = [one for arm in part.arms for one in arm.measured(what)]
    return {one["provenance"]["compute_dtype"] for one in found}


def _hops(part: PartResults) -> list[int]:
    found = [one for arm in part.arms for one in arm.measured("hops")]
    return [one["hops"] for one in found[0]["accuracy_by_hop"]] if found else []


def _accuracy(arm: ArmResults, index: int) -> str:
    asked = [one["accuracy_by_hop"][index]["accuracy"] for one in arm.measured("hops")]
    return _over_runs(asked, ".3f")


def _core(arm: ArmResults, name: str) -> str:
    """Times 100; there is no number where tasks were left out."""
    found = []
    for one in arm.measured("core"):
        if one[name] is not None:
            low, high = one[f"{name}_interval"]
            found.append({"value": 100 * one[name], "lower": 100 * low, "upper": 100 * high})
    return _over_runs(found, ".2f")


def _later_gain(arm: ArmResults) -> str:
    return transport_over_runs(
        [one for one in arm.measured("transport") if len(one["target_gain"]) > 1],
        "later_gain",
        "+.4f",
    )


def _papers_later_gain(row: _PapersRow) -> str:
    found = paper.TRANSPORT.get((row.size, row.loop))
    return "" if found is None else f"{found.later_gain:+.3f}"


def _seconds(arm: ArmResults) -> str:
    times = [run.seconds for run in arm.runs if run.seconds is not None]
    return f"{sum(times) / len(times):,.0f}" if times else ""


def _has_bytes(part: PartResults) -> bool:
    found = [one for arm in part.arms for one in arm.measured("nll")]
    return bool(found) and all(one["bits_per_byte"] is not None for one in found)


def _papers_row(part: PartResults, arm: ArmResults) -> _PapersRow | None:
    """Of the same size, loop and data, or there is nothing to set beside."""
    if not part.facts["data"].startswith(PAPERS_DATA):
        return None
    for size, loops in paper.HELD_OUT_NLL.items():
        same = all(
            arm.facts[key] == getattr(PRESETS[size], key)
            for key in ("num_layers", "d_model", "vocab_size")
        )
        if same and arm.name in loops:
            return _PapersRow(size, arm.name)
    return None


def transport_over_runs(found: Sequence[Mapping[str, Any]], name: str, how: str) -> str:
    """A number of transport with its interval; nothing where a run has none."""
    runs = []
    for one in found:
        low, high = one[f"{name}_interval"]
        if None not in (one[name], low, high):
            runs.append({"value": one[name], "lower": low, "upper": high})
    return _over_runs(runs, how)


def _over_runs(found: Sequence[Mapping[str, float]], how: str) -> str:
    if not found:
        return ""
    value, low, high = (format(number, how) for number in over_runs(found))
    return f"{value} [{low}, {high}]"


def _pairs_table(part: PartResults, comparison: dict[str, Any]) -> Table:
    names, pairs = arm_names(part), comparison["pairs"]
    rows = []
    for pair in pairs:
        for name, one in measures(pair):
            measure = measure_named(name)
            value, low, high = (
                f"{measure.scale * one[key]:+.{measure.digits}f}"
                for key in ("difference", "lower", "upper")
            )
            models = f"{names[pair['first']]} minus {names[pair['second']]}"
            rows.append([models, measure.title, value, f"{low} to {high}", one["verdict"]])
    columns = ["models", "measure", "difference", "95 % interval", "verdict"]
    seeds = "; or ".join(sorted({pair["seeds"] for pair in pairs}))
    note = f"{seeds[:1].upper()}{seeds[1:]}. Resolved: zero is outside."
    if len(pairs) > 1:
        note += f" Each is at 95 % by itself, and not corrected for {len(pairs)} pairs."
    return Table("Differences", columns, rows, note)


def measures(pair: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What two models were compared by."""
    for name, one in pair.items():
        if isinstance(one, dict) and "verdict" in one:
            yield name, one


def arm_names(part: PartResults) -> dict[str, str]:
    """From the comparison's names, which are notation, to the study's."""
    by_path = {run.path.name: arm.name for arm in part.arms for run in arm.runs}
    found = part.comparison["arms"] if part.comparison else []
    return {one["name"]: by_path[one["runs"][0].rpartition("/")[2]] for one in found}
