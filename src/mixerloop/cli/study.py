"""`mixerloop study`: from a study file to a finished report."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mixerloop.files import json_text

HELP = """Plan a study, run what is missing of it, and write its report.

The plan comes first. Stopped or killed, the same command goes on; finished cells are not run again.

examples:
  mixerloop study studies/quick.toml
  mixerloop study studies/quick.toml --dry-run
  mixerloop study studies/text-small.toml --corpus stories.jsonl.xz tales.jsonl.xz
  mixerloop study studies/quick.toml --jobs 1
  mixerloop study studies/paper-15m.toml --cells 3,7
  mixerloop study studies/paper-15m.toml --engine ray
  mixerloop study status runs/quick
"""
STATUS = "status"


@dataclass(frozen=True, kw_only=True)
class Study:
    """The options of `mixerloop study`."""

    what: Annotated[tuple[str, ...], tyro.conf.Positional]
    """A study file; or status, and studies or their folders."""
    out: Path | None = None
    """The study's folder, runs/NAME for NAME.toml unless you say so."""
    dry_run: bool = False
    """Show the plan and stop."""
    cells: str | None = None
    """Run these cells only, such as 3,7; no report is written."""
    jobs: int | None = None
    """Cells that run at a time, each a process with its share of the cores; as many as make the
    study fastest here unless you say so. Numbers do not depend on it."""
    engine: Literal["here", "ray"] = "here"
    """Run cells on this machine, or hand them to a Ray cluster."""
    corpus: tuple[Path, ...] = ()
    """Your text, for a study that asks for it."""
    held_out: tuple[Path, ...] = ()
    """Files of it that are held out whole."""
    tokenizer: Path | None = None
    """A SentencePiece model, for a study that asks for it."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Plan, run, compare and report."""
        if not self.what:
            raise ValueError("name a study file, such as studies/quick.toml")
        name, *others = self.what
        if name == STATUS:
            _show_status(others, as_json=self.json)
            return
        if others:
            raise ValueError(f"{others[0]}: one study at a time")
        from mixerloop.studies.running import plan_study, run_planned
        from mixerloop.studies.text import plan_text

        planned = plan_study(name, out=self.out, cells=_numbers(self.cells), jobs=self.jobs)
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
        )
        if (report := outcome.report) is not None:
            if self.json:
                print(json_text(report.to_json()), end="")
            else:
                print(*report.findings, f"report: {report.page}", sep="\n")
        if outcome.failed:
            print(f"failed: {', '.join(outcome.failed)}; start again to retry")
            sys.exit(1)


def _numbers(cells: str | None) -> list[int] | None:
    if cells is None:
        return None
    words = [word.strip() for word in cells.split(",")]
    if not all(word.isdecimal() for word in words):
        raise ValueError(f"--cells {cells}: cells are numbers, such as 3,7")
    return [int(word) for word in words]


def _show_status(folders: list[str], *, as_json: bool) -> None:
    from mixerloop.studies.overview import study_status
    from mixerloop.studies.text import status_text

    studies = study_status(folders)
    if as_json:
        print(json_text([one.to_json() for one in studies]), end="")
        return
    for one in studies:
        print(status_text(one))
