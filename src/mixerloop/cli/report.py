"""`mixerloop report`: a page from the results of a study, or of runs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mixerloop import config as configs
from mixerloop import runs
from mixerloop.files import json_text, read_json
from mixerloop.notation import notation
from mixerloop.parsing import one_line
from mixerloop.study_folder import PLAN, REPORT

if TYPE_CHECKING:
    from mixerloop.reports.study_results import StudyResults

HELP = """Write one self-contained page, report.md beside it and a folder of figures.

Only result files are read, so a report can be made again anywhere.

examples:
  mixerloop report runs/quick
  mixerloop report runs/quick runs/text-small --out all.html
  mixerloop report runs/mixer_loop runs/full_loop --out both.html
"""


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
    from mixerloop.evaluation.comparison import compare, to_json
    from mixerloop.evaluation.kept_results import read_results
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
            kept = [read_results(path) for path in paths]
            comparison = to_json(compare(kept), kept)
            groups = [[Path(run) for run in arm["runs"]] for arm in comparison["arms"]]
        except ValueError as error:
            about = f"The runs were not compared: {one_line(error)}."
            print(about, file=sys.stderr)
    plan = _plan_of(groups) | {"about": about}
    return _written(gather(plan, Path(), {"runs": comparison}), page)


def _plan_of(groups: list[list[Path]]) -> dict[str, Any]:
    from mixerloop.model.accounting import account_model, training_flops_per_token
    from mixerloop.model.initialization import meta_model

    arms, cells = [], []
    for group in groups:
        name = group[0].name
        config = configs.load(group[0] / runs.CONFIG).model
        model = meta_model(config, form="torch")
        arms.append(
            {
                "name": name,
                "schedule": notation(config.occurrences()),
                "num_layers": config.num_layers,
                "d_model": config.d_model,
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "flops_per_token": training_flops_per_token(model),
                "macs": account_model(config).projection_macs(),
            }
        )
        for path in group:
            seed = read_json(path / runs.PROVENANCE).get("seed")
            cells.append({"name": str(path), "part": "runs", "arm": name, "seed": seed})
    part = {
        "name": "runs",
        "match": "as they are",
        "seeds": sorted({str(cell["seed"]) for cell in cells}),
        "data": "their own data",
        "arms": arms,
    }
    title = " and ".join(arm["name"] for arm in arms)
    return {"title": title, "parts": [part], "cells": cells}
