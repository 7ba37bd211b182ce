"""`mixerloop study`: from a study file to a finished report."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mixerloop.files import json_text
from mixerloop.messages import printable
from mixerloop.progress_line import to_stderr

HELP = """Plan a study, run its unfinished cells, and write its report.

The plan is printed first. After a stop the same command resumes; finished cells are not run again.

examples:
  mixerloop study quick
  mixerloop study quick --dry-run
  mixerloop study text-small --corpus stories.jsonl.xz tales.jsonl.xz
  mixerloop study quick --jobs 1
  mixerloop study retrofit.toml --parent runs/trained
  mixerloop study paper-15m --cells 3,7
  mixerloop study paper-15m --engine ray
  mixerloop study status quick
  mixerloop study status quick --csv rows.csv
"""
STATUS = "status"


@dataclass(frozen=True, kw_only=True)
class Study:
    """The options of `mixerloop study`."""

    what: Annotated[tuple[str, ...], tyro.conf.Positional]
    """A study of mixerloop studies by its name, or a file of yours ending in .toml; or the word
    status, and names or folders of studies."""
    out: Path | None = None
    """The study's folder; by default runs/NAME."""
    dry_run: bool = False
    """Print the plan and run nothing."""
    cells: str | None = None
    """Run these cells only, such as 3,7; no report is written."""
    jobs: int | None = None
    """Cells at a time, one process each; by default the fastest number. It changes no result."""
    engine: Literal["here", "ray"] = "here"
    """Run cells on this machine, or hand them to a Ray cluster."""
    corpus: tuple[Path, ...] = ()
    """Your text, for a study that needs text files."""
    held_out: tuple[Path, ...] = ()
    """Files of text that are held out whole."""
    tokenizer: Path | None = None
    """A tokenizer (.model, .json) or a folder with one, for a study that needs it."""
    parent: Path | None = None
    """The run whose weights models start from, for a study that needs one."""
    csv: Path | None = None
    """Write the rows of the study, with the figures of all results, as CSV."""
    parquet: Path | None = None
    """The same as Parquet."""
    overwrite: bool = False
    """Let the report and the rows replace files that mixerloop did not write."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Print the status of studies; or plan and run a study, and print its findings."""
        if not self.what:
            raise ValueError("name a study, such as quick; mixerloop studies lists them")
        name, *more = self.what
        if name == STATUS:
            _show_status(more, as_json=self.json)
            if more:
                self._write_rows(more[0])
            return
        if more:
            raise ValueError(f"{more[0]}: one study at a time")
        from mixerloop.studies.running import plan_study, run_planned
        from mixerloop.studies.text import plan_text

        planned = plan_study(
            name,
            out=self.out,
            cells=_numbers(self.cells),
            jobs=self.jobs,
            parent=self.parent,
        )
        if not self.json:
            print(plan_text(planned))
        elif self.dry_run:
            print(json_text(planned.to_json()), end="")
        if self.dry_run:
            return
        outcome = run_planned(
            planned,
            engine=self.engine,
            corpus=self.corpus,
            held_out=self.held_out,
            tokenizer=self.tokenizer,
            overwrite=self.overwrite,
        )
        report = outcome.report
        if report is not None and report.warning is not None:
            to_stderr(f"{report.warning}\n")
        if self.json:
            facts = {"folder": str(outcome.folder), "failed": list(outcome.failed)}
            print(json_text(facts if report is None else report.to_json()), end="")
        elif report is not None:
            print(*map(printable, report.findings), f"report: {report.page}", sep="\n")
        self._write_rows(outcome.folder)
        if outcome.failed:
            print(f"failed: {', '.join(outcome.failed)}; start again to retry")
            sys.exit(1)

    def _write_rows(self, study: Path | str) -> None:
        from mixerloop.studies.overview import write_table

        if self.csv is not None or self.parquet is not None:
            write_table(study, csv=self.csv, parquet=self.parquet, overwrite=self.overwrite)


def _numbers(cells: str | None) -> list[int] | None:
    if cells is None:
        return None
    words = [word.strip() for word in cells.split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) < 10 for word in words):
        raise ValueError(f"--cells {cells}: cells are numbers, such as 3,7")
    return [int(word) for word in words]


def _show_status(folders: list[str], *, as_json: bool) -> None:
    from mixerloop.studies.overview import study_status
    from mixerloop.studies.text import status_text

    studies = study_status(folders)
    if as_json:
        print(json_text([study.to_json() for study in studies]), end="")
        return
    for study in studies:
        print(status_text(study))
