"""`mixerloop evaluate compare`: which differences between runs are resolved."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from mixerloop.config import check_seed
from mixerloop.files import json_text
from mixerloop.measures import measure_named
from mixerloop.provenance import collect_provenance
from mixerloop.text_tables import print_table, table_of

if TYPE_CHECKING:
    from mixerloop.evaluation.comparison import Comparison, Pair

COMPARE_HELP = """Differences between runs that were measured alike, with a verdict on each.

Runs whose configs differ in the seed only are one architecture. CORE is times 100 in the table.

examples:
  mixerloop evaluate compare runs/mixer_loop runs/full_loop
  mixerloop evaluate compare runs/mixer-seed* runs/full-seed* --json
"""
SHOWN_TASKS = 5


@dataclass(frozen=True, kw_only=True)
class Compare:
    """The options of `mixerloop evaluate compare`."""

    run_paths: tyro.conf.Positional[tuple[Path, ...]]
    """Runs with results of `evaluate nll`, `hops` or `core`, or folders given as their --out."""
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
            result["provenance"] = collect_provenance(seed=self.seed)
            print(json_text(result), end="")
            return
        _show_arms(comparison)
        for pair in comparison.pairs:
            _show_pair(pair)
        for warning in comparison.warnings:
            print(f"warning: {warning}")


def _show_arms(comparison: "Comparison") -> None:
    names = list(comparison.scores)
    measures = [measure_named(name) for name in names]
    table = table_of("architecture", "seeds", *(measure.title for measure in measures))
    for arm in comparison.arms:
        seeds = ", ".join("-" if seed is None else str(seed) for seed in arm.seeds)
        means = [
            f"{measure.scale * comparison.scores[name][list(arm.runs)].mean():.{measure.digits}f}"
            for name, measure in zip(names, measures, strict=True)
        ]
        table.add_row(arm.name, seeds, *means)
    print_table(table)


def _show_pair(pair: "Pair") -> None:
    print(f"\n{pair.first} minus {pair.second} ({pair.seeds})")
    table = table_of("", "difference", "95 % interval", "verdict")
    for name, difference in pair.measures.items():
        measure = measure_named(name)
        value, lower, upper = (
            f"{measure.scale * x:+.{measure.digits}f}"
            for x in (difference.difference, difference.lower, difference.upper)
        )
        table.add_row(measure.title, value, f"{lower} to {upper}", difference.verdict)
    print_table(table)
    if pair.tasks:
        order = sorted(pair.tasks, key=lambda label: -abs(pair.tasks[label].contribution))
        parts = (
            f"{label} {100 * pair.tasks[label].contribution:+.2f}" for label in order[:SHOWN_TASKS]
        )
        print(f"the tasks that weigh most: {', '.join(parts)}")
    for warning in pair.warnings:
        print(f"warning: {warning}")
