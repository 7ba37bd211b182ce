"""`mixerloop evaluate compare`: which differences between runs are resolved."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from mixerloop import runs
from mixerloop.cli.tables import print_table, table_of

if TYPE_CHECKING:
    from mixerloop.evaluation.comparison import Comparison, Pair

COMPARE_HELP = """Differences between runs that were measured alike, with a verdict on each.

Runs whose configs differ in the seed only are one architecture. CORE is times 100 in the table.

examples:
  mixerloop evaluate compare runs/mixer_loop runs/full_loop
  mixerloop evaluate compare runs/mixer-seed* runs/full-seed* --json
"""
SHOWN_TASKS = 5
NAMES = {
    "core_v1": "CORE, baselines v1",
    "core_v2": "CORE, baselines v2",
    "manipulation_v1": "Manip., baselines v1",
    "manipulation_v2": "Manip., baselines v2",
    "nll": "held-out NLL",
}


@dataclass(frozen=True, kw_only=True)
class Compare:
    """The options of `mixerloop evaluate compare`."""

    run_paths: tyro.conf.Positional[tuple[Path, ...]]
    """Runs with results of `evaluate nll` or `evaluate core`."""
    seed: int = 0
    """Seed of the resampling."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Read the results and say what differs."""
        from mixerloop.evaluation.comparison import compare, to_json
        from mixerloop.evaluation.kept_results import read_results

        results = [read_results(path) for path in self.run_paths]
        comparison = compare(results, seed=self.seed)
        if self.json:
            limited = any(one.core is not None and not one.core.comparable for one in results)
            result = to_json(comparison, results) | {
                "comparable": not limited,
                "provenance": runs.provenance(seed=self.seed),
            }
            print(runs.to_json(result), end="")
            return
        _show_arms(comparison)
        for pair in comparison.pairs:
            _show_pair(pair)


def _scale(name: str) -> float:
    return 1.0 if name == "nll" else 100.0


def _show_arms(comparison: "Comparison") -> None:
    names = list(comparison.scores)
    table = table_of("architecture", "seeds", *(NAMES[name] for name in names))
    for arm in comparison.arms:
        means = (comparison.scores[name][list(arm.runs)].mean() * _scale(name) for name in names)
        seeds = ", ".join("-" if seed is None else str(seed) for seed in arm.seeds)
        table.add_row(arm.name, seeds, *(f"{mean:.3f}" for mean in means))
    print_table(table)


def _show_pair(pair: "Pair") -> None:
    print(f"\n{pair.first} minus {pair.second} ({pair.seeds})")
    table = table_of("", "difference", "95 % interval", "verdict")
    for name, found in pair.measures.items():
        scale = _scale(name)
        table.add_row(
            NAMES[name],
            f"{scale * found.difference:+.3f}",
            f"{scale * found.lower:+.3f} to {scale * found.upper:+.3f}",
            found.verdict,
        )
    print_table(table)
    if pair.tasks:
        order = sorted(pair.tasks, key=lambda label: -abs(pair.tasks[label].contribution))
        parts = (
            f"{label} {100 * pair.tasks[label].contribution:+.2f}" for label in order[:SHOWN_TASKS]
        )
        print(f"most of the CORE difference: {', '.join(parts)}")
    for warning in pair.warnings:
        print(f"warning: {warning}")
