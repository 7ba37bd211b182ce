"""A study's results, read from its files and nothing else."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixerloop import runs, study_folder
from mixerloop.files import read_json


@dataclass(frozen=True, kw_only=True)
class ArmResults:
    """One model: what it is, and its runs."""

    facts: dict[str, Any]
    """As the plan has them: name, schedule, parameters, flops_per_token, ..."""
    runs: "list[RunResults]"

    @property
    def name(self) -> str:
        """What it is called."""
        return self.facts["name"]

    def measured(self, what: str) -> "list[dict[str, Any]]":
        """One result of each run that has it."""
        return [run.results[what] for run in self.runs if what in run.results]


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """One seed."""

    path: Path
    seed: int | None
    results: dict[str, dict[str, Any]]
    """By file name without its ending: nll, hops, core, transport."""
    curve: list[dict[str, Any]]
    """Steps at which the held-out NLL was measured: step, tokens, flops, held_out_nll."""
    seconds: float | None
    """Of training."""
    tokens: int | None
    provenance: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PartResults:
    """Models that were compared."""

    facts: dict[str, Any]
    arms: list[ArmResults]
    comparison: dict[str, Any] | None
    missing: list[str]
    """Cells that are not trained, or not measured as planned."""

    @property
    def name(self) -> str:
        """What it is called."""
        return self.facts["name"]


@dataclass(frozen=True, kw_only=True)
class StudyResults:
    """All of it."""

    plan: dict[str, Any]
    parts: list[PartResults]
    prefills: dict[str, dict[str, Any]]
    """Of each study that timed it, under its name; of a single study under no name."""


def read_study(folder: Path) -> StudyResults:
    """Read the folder of a study, finished or not."""
    plan = study_folder.read_plan(folder)
    parts = {part["name"] for part in plan["parts"]}
    for name in (*parts, *(cell["name"] for cell in plan["cells"])):
        of, _, run = name.rpartition("/")
        if run.startswith(".") or (of or run) not in parts or of.startswith("."):
            raise ValueError(f"{folder / study_folder.PLAN}: '{name}' is no name of this study's")
    comparisons = {
        part["name"]: _read(folder / part["name"] / study_folder.COMPARISON)
        for part in plan["parts"]
    }
    prefill = _read(folder / study_folder.PREFILL)
    found = gather(plan, folder, comparisons)
    return found if prefill is None else dataclasses.replace(found, prefills={"": prefill})


def joined(studies: Mapping[str, StudyResults]) -> StudyResults:
    """Several studies on one page; their parts are called by the study's name, too."""
    parts = [
        dataclasses.replace(
            part,
            facts=part.facts | {"name": f"{name}-{part.name}"},
            missing=[f"{name}/{cell}" for cell in part.missing],
        )
        for name, study in studies.items()
        for part in study.parts
    ]
    plans = [study.plan for study in studies.values()]
    plan = {
        "title": " and ".join(plan["title"] for plan in plans),
        "about": "\n\n".join(plan["about"] for plan in plans),
    }
    prefills = {
        f"{name}, ": one for name, study in studies.items() for one in study.prefills.values()
    }
    return StudyResults(plan=plan, parts=parts, prefills=prefills)


def gather(
    plan: dict[str, Any],
    folder: Path,
    comparisons: Mapping[str, dict[str, Any] | None],
) -> StudyResults:
    """Read the runs of a plan."""
    parts = []
    for part in plan["parts"]:
        cells = [cell for cell in plan["cells"] if cell["part"] == part["name"]]
        found = {cell["name"]: _run(folder, cell) for cell in cells}
        arms = [
            ArmResults(
                facts=arm,
                runs=[
                    run
                    for cell in cells
                    if cell["arm"] == arm["name"] and (run := found[cell["name"]]) is not None
                ],
            )
            for arm in part["arms"]
        ]
        parts.append(
            PartResults(
                facts=part,
                arms=[arm for arm in arms if arm.runs],
                comparison=_of_these(comparisons.get(part["name"]), found),
                missing=[name for name, run in found.items() if run is None],
            )
        )
    return StudyResults(plan=plan, parts=parts, prefills={})


def _of_these(
    comparison: dict[str, Any] | None, found: "Mapping[str, RunResults | None]"
) -> dict[str, Any] | None:
    """A comparison, unless it speaks of runs that are no longer there."""
    names = {run.path.name for run in found.values() if run is not None}
    if comparison is None:
        return None
    spoken_of = {Path(run).name for arm in comparison.get("arms", ()) for run in arm["runs"]}
    return comparison if spoken_of and spoken_of <= names else None


def _run(folder: Path, cell: dict[str, Any]) -> RunResults | None:
    """The results of a cell; none while any that the plan asks for is missing."""
    path = folder / cell["name"]
    results = {
        file.stem: found
        for file in sorted((path / runs.RESULTS).glob("*.json"))
        if (found := _read(file)) is not None
    }
    if not results or not results.keys() >= set(cell.get("measure", ())):
        return None
    metrics = _lines(path / runs.METRICS)
    timing = _lines(path / runs.TIMING)
    return RunResults(
        path=path,
        seed=cell["seed"],
        results=results,
        curve=[line for line in metrics if line.get("held_out_nll") is not None],
        seconds=sum(line["seconds"] for line in timing) if timing else None,
        tokens=metrics[-1]["tokens"] if metrics else None,
        provenance=_read(path / runs.PROVENANCE) or {},
    )


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: not a result; make it again")
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
