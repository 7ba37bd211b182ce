"""`mixerloop report`: a page from the results of a study, or of runs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.files import json_text, read_json
from mixerloop.parsing import one_line
from mixerloop.results import result_provenance
from mixerloop.study_folder import (
    PLAN,
    REPORT,
    PlannedCell,
    PlannedPart,
    StudyPlan,
    TransportSettings,
)

if TYPE_CHECKING:
    from mixerloop.reports.study_results import StudyResults

HELP = """Write one self-contained page, report.md beside it and a folder of figures.

Only result files are read, so a report can be made again anywhere.

examples:
  mixerloop report runs/quick
  mixerloop report runs/quick runs/text-small --out all.html
  mixerloop report runs/mixer_loop runs/full_loop --out both.html
"""

RUNS = "runs"
"""The part that runs outside a study are shown as."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The options of `mixerloop report`."""

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of studies; or runs with results."""
    out: Path | None = None
    """The page; report.html in the study's folder unless you say so."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Read, build, write."""
        if not self.paths:
            raise ValueError("name a study's folder, or runs")
        studies = [path for path in self.paths if (path / PLAN).is_file()]
        if studies and len(studies) < len(self.paths):
            raise ValueError(f"{studies[0]}: a study; runs outside it need a report of their own")
        if self.out is None and len(studies) != 1:
            raise ValueError("say where the page goes, such as --out report.html")
        page = self.paths[0] / REPORT if self.out is None else self.out
        if page.suffix != ".html":
            raise ValueError(f"{page}: a page ends in .html")
        found = write(studies, page) if studies else _of_runs(self.paths, page)
        if self.json:
            print(json_text({"report": str(page), "findings": found}), end="")
            return
        for line in found:
            print(line)
        print(f"report: {page}")


def write(studies: Sequence[Path], page: Path) -> list[str]:
    """The report of a study, or of several; returns what was found."""
    from mixerloop.reports.study_results import joined, read_study

    found = {path.resolve().name: read_study(path) for path in studies}
    if len(found) < len(studies):
        raise ValueError("two studies have the same name; a report needs different ones")
    (first, *others) = found.values()
    return _written(joined(found) if others else first, page)


def _written(results: "StudyResults", page: Path) -> list[str]:
    from mixerloop.reports.build import build_report, findings
    from mixerloop.reports.page import write_report

    write_report(build_report(results), page)
    return findings(results)


def _of_runs(paths: tuple[Path, ...], page: Path) -> list[str]:
    """Runs as if they were a study of one part; runs that differ in the seed only are one model."""
    from mixerloop.evaluation.comparison import compare_runs
    from mixerloop.reports.study_results import gather

    for path in paths:
        if not (path / runs.CONFIG).is_file():
            raise ValueError(f"{path}: neither a study's folder nor a run")
    paths = tuple(path.resolve() for path in paths)
    if len({path.name for path in paths}) < len(paths):
        raise ValueError("two runs have the same name; a report needs different ones")
    comparison, about = None, ""
    groups = [[path] for path in paths]
    if len(paths) > 1:
        try:
            comparison = compare_runs(paths)
            groups = [[Path(run) for run in arm.runs] for arm in comparison.arms]
        except ValueError as error:
            about = f"The runs were not compared: {one_line(error)}."
            print(about, file=sys.stderr)
    plan = _plan_of(groups, about)
    return _written(gather(plan, Path(), {RUNS: comparison}), page)


def _plan_of(groups: list[list[Path]], about: str) -> StudyPlan:
    """Runs as the plan of a study would list them."""
    from mixerloop.model.accounting import training_flops_per_token
    from mixerloop.model.initialization import meta_model
    from mixerloop.studies.plan import planned_arm

    arms, cells = [], []
    for group in groups:
        name = group[0].name
        config = configs.load(group[0] / runs.CONFIG).model
        model = meta_model(config, form="torch")
        parameters = sum(parameter.numel() for parameter in model.parameters())
        flops = training_flops_per_token(model)
        arms.append(planned_arm(name, config, parameters=parameters, flops_per_token=flops))
        for path in group:
            seed = read_json(path / runs.PROVENANCE).get("seed")
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
