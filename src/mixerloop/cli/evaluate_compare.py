"""`mixerloop evaluate compare`: which differences between runs are resolved."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from mixerloop import runs
from mixerloop.cli.tables import print_table, table_of
from mixerloop.config import check_seed

if TYPE_CHECKING:
    from mixerloop.evaluation.comparison import Comparison, Pair

COMPARE_HELP = """Differences between runs that were measured alike, with a verdict on each.

Runs whose configs differ in the seed only are one architecture. CORE is times 100 in the table.

examples:
  mixerloop evaluate compare runs/mixer_loop runs/full_loop
  mixerloop evaluate compare runs/mixer-seed* runs/full-seed* --json
"""
SHOWN_TASKS = 5
KINDS = {"core": "CORE", "tasks": "mean of the tasks", "manipulation": "Manip."}


@dataclass(frozen=True, kw_only=True)
class Compare:
    """The options of `mixerloop evaluate compare`."""

    run_paths: tyro.conf.Positional[tuple[Path, ...]]
    """Runs with results of `evaluate nll` or `evaluate core`, or folders given as their --out."""
    seed: int = 0
    """Seed of the resampling."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Read the results and say what differs."""
        from mixerloop.evaluation.comparison import compare, to_json
        from mixerloop.evaluation.kept_results import read_results

        check_seed(self.seed)
        results = [read_results(path) for path in self.run_paths]
        comparison = compare(results, seed=self.seed)
        if self.json:
            result = to_json(comparison, results)
            result["provenance"] = runs.provenance(seed=self.seed)
            print(runs.to_json(result), end="")
            return
        _show_arms(comparison)
        for pair in comparison.pairs:
            _show_pair(pair)
        for warning in comparison.warnings:
            print(f"warning: {warning}")


def _scale(name: str) -> float:
    return 1.0 if name == "nll" else 100.0


def _digits(name: str) -> int:
    return 5 if name == "nll" else 2


def _title(name: str) -> str:
    if name == "nll":
        return "held-out NLL"
    kind, version = name.rsplit("_", 1)
    return f"{KINDS[kind]}, baselines {version}"


def _show_arms(comparison: "Comparison") -> None:
    names = list(comparison.scores)
    table = table_of("architecture", "seeds", *(_title(name) for name in names))
    for arm in comparison.arms:
        means = (comparison.scores[name][list(arm.runs)].mean() * _scale(name) for name in names)
        seeds = ", ".join("-" if seed is None else str(seed) for seed in arm.seeds)
        shown = (f"{mean:.{_digits(name)}f}" for name, mean in zip(names, means, strict=True))
        table.add_row(arm.name, seeds, *shown)
    print_table(table)


def _show_pair(pair: "Pair") -> None:
    print(f"\n{pair.first} minus {pair.second} ({pair.seeds})")
    table = table_of("", "difference", "95 % interval", "verdict")
    for name, found in pair.measures.items():
        value, lower, upper = (
            f"{_scale(name) * x:+.{_digits(name)}f}"
            for x in (found.difference, found.lower, found.upper)
        )
        table.add_row(_title(name), value, f"{lower} to {upper}", found.verdict)
    print_table(table)
    if pair.tasks:
        order = sorted(pair.tasks, key=lambda label: -abs(pair.tasks[label].contribution))
        parts = (
            f"{label} {100 * pair.tasks[label].contribution:+.2f}" for label in order[:SHOWN_TASKS]
        )
        print(f"the tasks that weigh most: {', '.join(parts)}")
    for warning in pair.warnings:
        print(f"warning: {warning}")
