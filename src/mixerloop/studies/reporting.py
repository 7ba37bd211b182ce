"""`make_report`: a page from the results of studies, or of runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.evaluation.comparison_result import Comparison
from mixerloop.files import is_there
from mixerloop.model.accounting import training_flops_per_token
from mixerloop.model.initialization import meta_model
from mixerloop.parsing import checked, one_line
from mixerloop.reports.build import build_report, findings
from mixerloop.reports.page import check_page, write_report
from mixerloop.reports.study_results import (
    StudyResults,
    joined,
    judged_on_one_page,
    read_study,
)
from mixerloop.studies.comparing import architectures
from mixerloop.studies.plan import model_facts
from mixerloop.studies.reading import filled, read_run
from mixerloop.studies.table import Row, Table
from mixerloop.study_folder import PLAN, REPORT, folder_named

RUNS = "runs"
"""The name of the only part in a report of runs."""


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    """A report that was written: its page, its findings and a warning."""

    page: Path
    """The HTML file; report.md and the figures are beside it."""
    findings: tuple[str, ...]
    """The order of the models by each measure, and which differences are resolved."""
    warning: str | None = None
    """The reason if runs were not compared, or if figures were not drawn."""

    def to_json(self) -> dict[str, Any]:
        """The JSON that `mixerloop report --json` prints."""
        return {"report": str(self.page), "findings": list(self.findings)}


@checked
def make_report(
    paths: Sequence[Path | str], out: Path | str | None = None, *, overwrite: bool = False
) -> WrittenReport:
    """Write one self-contained page, Markdown beside it and a folder of figures.

    `paths` are folders or names of studies, or runs with results. `out` is the page; its default
    for a single study is report.html in the study's folder. `overwrite` also replaces files that
    this program did not write. If figures cannot be drawn, the rest is written, with a warning.
    """
    folders = [folder_named(path) for path in paths]
    if not folders:
        raise ValueError("name a study's folder, or runs")
    studies = [path for path in folders if is_there(path / PLAN)]
    if studies and len(studies) < len(folders):
        raise ValueError(f"{studies[0]}: a study; runs outside it need a report of their own")
    if out is None and len(studies) != 1:
        raise ValueError("say where the page goes: out is a file such as report.html")
    page = folders[0] / REPORT if out is None else Path(out)
    if page.suffix != ".html":
        raise ValueError(f"{page}: a page ends in .html")
    check_page(page, overwrite=overwrite)
    results, warning = _of_studies(studies) if studies else _of_runs(folders)
    results = judged_on_one_page(results)
    undrawn = write_report(build_report(results), page, overwrite=overwrite)
    if undrawn is not None:
        again = f"mixerloop report {' '.join(map(str, folders))} --out {page}"
        undrawn = f"{undrawn}; draw them again: {again}"
    warnings = [line for line in (warning, undrawn) if line is not None]
    return WrittenReport(
        page=page,
        findings=tuple(findings(results)),
        warning="\n".join(warnings) if warnings else None,
    )


def _of_studies(studies: Sequence[Path]) -> tuple[StudyResults, None]:
    results = {path.resolve().name: read_study(path) for path in studies}
    if len(results) < len(studies):
        raise ValueError("two studies have the same name; a report needs different ones")
    (first, *others) = results.values()
    return (joined(results) if others else first), None


def _of_runs(paths: Sequence[Path]) -> tuple[StudyResults, str | None]:
    """Runs as a study of one part; runs that differ only in the seed are one model."""
    for path in paths:
        if not is_there(path / runs.CONFIG):
            raise ValueError(f"{path}: neither a study's folder nor a run")
    paths = tuple(path.resolve() for path in paths)
    if len({path.name for path in paths}) < len(paths):
        raise ValueError("two runs have the same name; a report needs different ones")
    comparisons, warning = {}, None
    groups = [[path] for path in paths]
    if len(paths) > 1:
        try:
            comparison = _compared([read_run(path) for path in paths])
            groups = [[Path(run) for run in arm.runs] for arm in comparison.arms]
            comparisons = {RUNS: comparison}
        except ValueError as error:
            warning = f"The runs were not compared: {one_line(error)}."
    rows = tuple(filled(row, Path()) for group in groups for row in _rows(group))
    results = StudyResults(
        title=" and ".join(group[0].name for group in groups),
        about=warning or "",
        table=Table(rows, comparisons),
        prefills={},
    )
    return results, warning


def _compared(rows: Sequence[Row]) -> Comparison:
    """The comparison of runs; an architecture has the name of its first seed's run."""
    of = Table(tuple(replace(r, arm=a) for r, a in zip(rows, architectures(rows), strict=True)))
    first = {
        arm: min(group, key=lambda row: (row.seed is None, row.seed or 0)).place.name
        for arm, group in of.by("arm").items()
    }
    return Table(tuple(replace(row, arm=first[row.arm]) for row in of)).compare()


def _rows(group: Sequence[Path]) -> Iterator[Row]:
    """The rows that a study would have for the runs of one architecture."""
    config = configs.load(group[0] / runs.CONFIG).model
    model = meta_model(config, form="torch")
    recorded = runs.read_provenance(group[0]).get("flops_per_token")
    facts = {
        **model_facts(config),
        "flops_per_token": training_flops_per_token(model) if recorded is None else recorded,
    }
    for path in group:
        yield Row(
            run=str(path),
            part=RUNS,
            family=RUNS,
            arm=group[0].name,
            seed=runs.read_provenance(path).get("seed"),
            data="their own data",
            **facts,
        )
