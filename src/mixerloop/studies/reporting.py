"""`make_report`: a page from the results of studies, or of runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.evaluation.comparison import compare_runs
from mixerloop.files import is_there
from mixerloop.model.accounting import training_flops_per_token
from mixerloop.model.initialization import meta_model
from mixerloop.parsing import checked, one_line
from mixerloop.reports.build import build_report, findings
from mixerloop.reports.page import check_page, write_report
from mixerloop.reports.study_results import (
    StudyResults,
    gather,
    joined,
    judged_on_one_page,
    read_study,
)
from mixerloop.results import result_provenance
from mixerloop.studies.plan import planned_arm
from mixerloop.study_folder import (
    PLAN,
    REPORT,
    PlannedCell,
    PlannedPart,
    StudyPlan,
    TransportSettings,
    folder_named,
)

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
    comparison, warning = None, None
    groups = [[path] for path in paths]
    if len(paths) > 1:
        try:
            comparison = compare_runs(paths)
            groups = [[Path(run) for run in arm.runs] for arm in comparison.arms]
        except ValueError as error:
            warning = f"The runs were not compared: {one_line(error)}."
    plan = _plan_of(groups, about=warning or "")
    return gather(plan, Path(), {RUNS: comparison}), warning


def _plan_of(groups: list[list[Path]], *, about: str) -> StudyPlan:
    """The plan of a study that would have made these runs."""
    arms, cells = [], []
    for group in groups:
        name = group[0].name
        config = configs.load(group[0] / runs.CONFIG).model
        model = meta_model(config, form="torch")
        parameters = sum(parameter.numel() for parameter in model.parameters())
        recorded = runs.read_provenance(group[0]).get("flops_per_token")
        flops = training_flops_per_token(model) if recorded is None else recorded
        arms.append(planned_arm(name, config, parameters=parameters, flops_per_token=flops))
        for path in group:
            seed = runs.read_provenance(path).get("seed")
            cells.append(
                PlannedCell(
                    number=len(cells) + 1,
                    name=str(path),
                    part=RUNS,
                    arm=name,
                    seed=seed,
                    measure=(),
                )
            )
    part = PlannedPart(
        name=RUNS,
        match="as they are",
        measure=(),
        seeds=tuple(sorted({cell.seed for cell in cells}, key=str)),
        data="their own data",
        compute_dtype="auto",
        transport=TransportSettings(),
        arms=tuple(arms),
    )
    title = " and ".join(arm.name for arm in arms)
    return StudyPlan(
        name=RUNS,
        title=title,
        about=about,
        parts=(part,),
        cells=tuple(cells),
        prefill=None,
        provenance=result_provenance(),
    )
