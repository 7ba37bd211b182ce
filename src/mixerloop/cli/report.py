"""`mixerloop report`: a page from the results of a study, or of runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.notation import notation
from mixerloop.study_folder import PLAN, REPORT

if TYPE_CHECKING:
    from mixerloop.reports.study_results import StudyResults

HELP = """Write one self-contained page, report.md beside it and a folder of figures.

Only result files are read, so a report can be made again anywhere.

examples:
  mixerloop report runs/quick
  mixerloop report runs/mixer_loop runs/full_loop --out both.html
"""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The options of `mixerloop report`."""

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """The folder of a study; or runs with results."""
    out: Path | None = None
    """The page; report.html in the study's folder unless you say so."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Read, build, write."""
        if not self.paths:
            raise ValueError("name a study's folder, or runs")
        studies = [path for path in self.paths if (path / PLAN).is_file()]
        if studies and len(self.paths) > 1:
            raise ValueError(f"{studies[0]}: a study; give it a report of its own")
        if not studies and self.out is None:
            raise ValueError("say where the page goes, such as --out report.html")
        page = next(iter(self.paths)) / REPORT if self.out is None else self.out
        if page.suffix != ".html":
            raise ValueError(f"{page}: a page ends in .html")
        found = write(studies[0], page) if studies else _of_runs(self.paths, page)
        if self.json:
            print(runs.to_json({"report": str(page), "findings": found}), end="")
            return
        for line in found:
            print(line)
        print(f"report: {page}")


def write(study: Path, page: Path) -> list[str]:
    """The report of a study; returns what was found."""
    from mixerloop.reports.study_results import read_study

    return _written(read_study(study), page)


def _written(results: "StudyResults", page: Path) -> list[str]:
    from mixerloop.reports.build import build_report, findings
    from mixerloop.reports.page import write_report

    write_report(build_report(results), page)
    return findings(results)


def _of_runs(paths: tuple[Path, ...], page: Path) -> list[str]:
    from mixerloop.evaluation.comparison import compare, to_json
    from mixerloop.evaluation.kept_results import read_results
    from mixerloop.reports.study_results import gather

    for path in paths:
        if not (path / runs.CONFIG).is_file():
            raise ValueError(f"{path}: neither a study's folder nor a run")
    plan = _plan_of(paths)
    comparison = None
    if len(paths) > 1:
        kept = [read_results(path) for path in paths]
        comparison = to_json(compare(kept), kept)
    return _written(gather(plan, Path(), {"runs": comparison}, None), page)


def _plan_of(paths: tuple[Path, ...]) -> dict[str, Any]:
    """Runs as if they were a study of one part."""
    from mixerloop.model.accounting import account_model

    arms, cells = [], []
    for number, path in enumerate(paths, start=1):
        config = configs.load(path / runs.CONFIG)
        facts = runs.read_json(path / runs.PROVENANCE)
        arms.append(
            {
                "name": path.name,
                "schedule": notation(config.model.occurrences()),
                "num_layers": config.model.num_layers,
                "d_model": config.model.d_model,
                "parameters": facts["num_parameters"],
                "flops_per_token": facts["flops_per_token"],
                "macs": account_model(config.model).projection_macs(),
            }
        )
        cells.append(
            {
                "number": number,
                "name": str(path),
                "part": "runs",
                "arm": path.name,
                "seed": facts["seed"],
            }
        )
    if len({path.name for path in paths}) < len(paths):
        raise ValueError("two runs have the same name; a report needs different ones")
    part = {
        "name": "runs",
        "match": "as they are",
        "seeds": sorted({cell["seed"] for cell in cells}),
        "data": "their own data",
        "arms": arms,
    }
    return {
        "title": " and ".join(path.name for path in paths),
        "about": "",
        "parts": [part],
        "cells": cells,
        "provenance": runs.provenance(),
    }
