"""`mixerloop study`: from a study file to a finished report."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from mixerloop import machine
from mixerloop.cli import report
from mixerloop.cli.cell_lines import CellLines
from mixerloop.cli.tables import print_table, table_of
from mixerloop.files import check_can_hold, json_text
from mixerloop.parsing import one_line
from mixerloop.progress_line import LOG_SECONDS_VARIABLE, duration
from mixerloop.study_folder import PLAN, REPORT, read_plan

if TYPE_CHECKING:
    from mixerloop.studies.plan import Cell, Plan

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
RUNS = Path("runs")
SHOWN_SECONDS = 1  # between the lines of progress of cells that run side by side


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
            _status([Path(one) for one in others], as_json=self.json)
            return
        if others:
            raise ValueError(f"{others[0]}: one study at a time")
        from mixerloop.studies.plan import make_plan
        from mixerloop.studies.study import read_study

        file = read_study(Path(name))
        plan = make_plan(file, RUNS / file.path.stem if self.out is None else self.out)
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"--jobs must be at least 1, got {self.jobs}")
        chosen = _chosen(plan, self.cells)
        machine.keep_freed_memory()
        plan.check_unchanged()
        expected = self._show_plan(plan, chosen)
        if self.dry_run:
            return
        self._start(plan)
        failed = self._run_cells(plan, chosen, expected)
        if self.cells is None:
            failed += self._finish(plan)
        if failed:
            print(f"failed: {', '.join(failed)}; start again to retry")
            sys.exit(1)

    def _start(self, plan: "Plan") -> None:
        """Everything that may be refused, before anything is trained."""
        from mixerloop.studies.cells import check_cells, prepare_data
        from mixerloop.studies.study import CORPUS, HELD_OUT, TOKENIZER

        plan.folder.mkdir(parents=True, exist_ok=True)
        check_can_hold(plan.folder)
        tokenizer = () if self.tokenizer is None else (self.tokenizer,)
        given = {CORPUS: self.corpus, HELD_OUT: self.held_out, TOKENIZER: tokenizer}
        for part in plan.file.study.parts:
            prepare_data(plan, part, _command, given)
        check_cells(plan, plan.cells)
        plan.write()

    def _jobs(self, cells: "Sequence[Cell]") -> int:
        """How many of these to run at a time; a process for some cells runs them in turn."""
        from mixerloop.studies.side_by_side import default_jobs

        if self.jobs is not None:
            return self.jobs
        return default_jobs(cells) if self.cells is None else 1

    def _show_plan(self, plan: "Plan", chosen: "Sequence[Cell]") -> dict[int, float]:
        """Print the plan; returns the seconds that cells are expected to train, by number."""
        from mixerloop.studies.cells import state_of
        from mixerloop.studies.expected_time import expected_of_all
        from mixerloop.studies.side_by_side import threads_of_each

        states = [state_of(plan.folder, cell.name, cell.measure) for cell in chosen]
        left = {
            cell.number: 1 - (one.step or 0) / (one.total_steps or 1)
            for cell, one in zip(chosen, states, strict=True)
            if one.state != "done"
        }
        waiting = [cell for cell in chosen if cell.number in left]
        jobs = self._jobs(waiting)
        seconds = {}
        if self.cells is None:
            whole = expected_of_all(waiting, threads=threads_of_each(jobs))
            seconds = {number: left[number] * all_of_it for number, all_of_it in whole.items()}
        if self.json:
            rows = [
                {
                    "cell": cell.number,
                    "name": cell.name,
                    "parameters": cell.parameters,
                    "flops_per_token": cell.flops_per_token,
                    "expected_seconds": seconds.get(cell.number),
                    **asdict(state),
                }
                for cell, state in zip(chosen, states, strict=True)
            ]
            if self.dry_run:
                print(json_text({"cells": rows, "precision": _precision(plan)}), end="")
            return seconds
        print(f"{plan.file.study.title}\n{len(plan.cells)} cells, kept in {plan.folder}")
        table = table_of("cell", "name", "parameters", "MFLOP/token", "state", "training")
        for cell, state in zip(chosen, states, strict=True):
            expected = seconds.get(cell.number)
            table.add_row(
                str(cell.number),
                cell.name,
                f"{cell.parameters:,}",
                f"{cell.flops_per_token / 1e6:,.1f}",
                state.state,
                "" if expected is None else duration(expected),
            )
        print_table(table)
        for part, types in _precision(plan).items():
            named = ", ".join(f"{what} in {dtype}" for what, dtype in types.items())
            print(f"{part}: {named}")
        if seconds:
            together = max(sum(seconds.values()) / jobs, *seconds.values())
            at_a_time = f", {jobs} cells at a time" if jobs > 1 else ""
            print(f"expected: {duration(together)} of training{at_a_time}, and then measuring")
        return seconds

    def _run_cells(
        self, plan: "Plan", chosen: "Sequence[Cell]", expected: dict[int, float]
    ) -> list[str]:
        from mixerloop.studies.cells import is_done, run_cell, run_prefill
        from mixerloop.studies.side_by_side import is_timed, run_side_by_side

        waiting = [cell for cell in chosen if not is_done(plan, cell)]
        failed = []
        independent = [cell for cell in waiting if not is_timed(cell)]
        if self.engine == "here" and (jobs := self._jobs(independent)) > 1:
            with CellLines(len(plan.cells)) as lines:
                failed = run_side_by_side(
                    plan,
                    independent,
                    jobs=jobs,
                    expected_seconds=expected,
                    environment={LOG_SECONDS_VARIABLE: str(SHOWN_SECONDS)},
                    heard=lines.heard,
                )
            waiting = [cell for cell in waiting if is_timed(cell)]
        if self.engine == "ray":
            from mixerloop.studies.on_ray import run_on_ray

            run_on_ray(plan, waiting, _say)
            failed = [cell.name for cell in waiting if not is_done(plan, cell)]
            waiting = []
        for cell in waiting:
            heading = f"[{cell.number}/{len(plan.cells)}] {cell.name}"
            try:
                if not run_cell(plan, cell, lambda text, at=heading: _say(at, text)):
                    _say(heading, "another process has it")
            except (KeyboardInterrupt, SystemExit):  # by a signal
                _say(heading, "stopped; the same command goes on from here")
                raise
            except Exception as error:  # the cell's record has all of it
                _say(heading, f"failed: {one_line(error)}")
                failed.append(cell.name)
        if (asked := plan.file.study.prefill) is not None and self.cells is None:
            try:
                run_prefill(plan, asked, _command, lambda text: _say("prefill", text))
            except (ValueError, OSError, ArithmeticError, RuntimeError) as error:
                _say("prefill", f"failed: {one_line(error)}")
                failed.append("prefill")
        return failed

    def _finish(self, plan: "Plan") -> list[str]:
        """Compare and report; returns what could not be compared."""
        from mixerloop.studies.cells import compare_part

        failed = []
        for part in plan.file.study.parts:
            try:
                compare_part(plan, part)
            except (ValueError, OSError) as error:
                _say(part.name, f"not compared: {one_line(error)}")
                failed.append(f"{part.name}, comparing")
        page = plan.folder / REPORT
        found = report.write([plan.folder], page)
        if self.json:
            print(json_text({"report": str(page), "findings": found}), end="")
            return failed
        for line in found:
            print(line)
        print(f"report: {page}")
        return failed


def _precision(plan: "Plan") -> dict[str, dict[str, str]]:
    """In which type each part is trained, and each of its figures is measured."""
    return {
        part.name: {
            "training": part.compute_dtype,
            **{measure: part.measured_in(measure) for measure in part.measure},
        }
        for part in plan.summary().parts
    }


def _command(arguments: Sequence[str]) -> None:
    """Run a verb in this process, as if it had been typed."""
    from mixerloop.cli.main import run_verb

    before = sys.argv
    sys.argv = ["mixerloop", *arguments]
    try:
        run_verb(arguments)
    finally:
        sys.argv = before


def _say(where: str, text: str) -> None:
    print(f"{where}: {text}", file=sys.stderr, flush=True)


def _chosen(plan: "Plan", cells: str | None) -> "list[Cell]":
    if cells is None:
        return list(plan.cells)
    numbers = []
    for word in cells.split(","):
        if not word.strip().isdecimal() or not 1 <= int(word) <= len(plan.cells):
            raise ValueError(f"--cells {cells}: cells are numbers from 1 to {len(plan.cells)}")
        numbers.append(int(word))
    return [plan.cells[number - 1] for number in numbers]


def _status(paths: list[Path], *, as_json: bool) -> None:
    from mixerloop.studies.cells import state_of

    if not paths:
        paths = sorted(path.parent for path in RUNS.glob(f"*/{PLAN}"))
        if not paths:
            raise ValueError("no study in runs; start one with mixerloop study STUDY.toml")
    found = []
    for path in paths:
        if not (path / PLAN).is_file():
            raise ValueError(f"{path}: not the folder of a study; mixerloop study makes one")
        plan = read_plan(path)
        states = [
            {
                "cell": cell.number,
                "name": cell.name,
                **asdict(state_of(path, cell.name, cell.measure)),
            }
            for cell in plan.cells
        ]
        found.append({"study": str(path), "title": plan.title, "cells": states})
    if as_json:
        print(json_text(found), end="")
        return
    for one in found:
        _show_status(one)


def _show_status(found: dict[str, Any]) -> None:
    print(f"{found['study']}: {found['title']}")
    table = table_of("cell", "name", "state", "step", "of", "trained", "problem")
    for one in found["cells"]:
        seconds = one["train_seconds"]
        table.add_row(
            str(one["cell"]),
            one["name"],
            one["state"],
            "" if one["step"] is None else f"{one['step']:,}",
            "" if one["total_steps"] is None else f"{one['total_steps']:,}",
            "" if seconds is None else duration(seconds),
            one["error"] or "",
        )
    print_table(table)
    done = sum(one["state"] == "done" for one in found["cells"])
    print(f"{done} of {len(found['cells'])} cells are done")
