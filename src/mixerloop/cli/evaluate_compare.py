"""`mixerloop evaluate compare`: which differences between runs are resolved."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from mixerloop.config import check_seed
from mixerloop.files import json_text
from mixerloop.measures import score_named
from mixerloop.results import encode, p_value_text
from mixerloop.text_tables import print_table, table_of

if TYPE_CHECKING:
    from mixerloop.evaluation.comparison_result import Comparison, Pair

COMPARE_HELP = """Differences between runs that were measured alike, with a verdict on each.

Runs whose configs differ only in the seed are one architecture. CORE is times 100 in the table.

examples:
  mixerloop evaluate compare runs/mixer_loop runs/full_loop
  mixerloop evaluate compare runs/mixer-seed* runs/full-seed* --json
"""
SHOWN_TASKS = 5


@dataclass(frozen=True, kw_only=True)
class Compare:
    """The options of `mixerloop evaluate compare`."""

    run_paths: tyro.conf.Positional[tuple[Path, ...]]
    """Runs with results of `evaluate nll`, `hops` or `core`, or the folders of their --out."""
    seed: int = 0
    """Seed of the resampling."""
    json: bool = False
    """Print JSON for programs."""

    def run(self) -> None:
        """Compare the results of the runs, and print differences with verdicts, or JSON."""
        from mixerloop.studies.comparing import compare_runs

        check_seed(self.seed)
        comparison = compare_runs(self.run_paths, seed=self.seed)
        if self.json:
            print(json_text(encode(comparison)), end="")
            return
        _show_arms(comparison)
        for pair in comparison.pairs:
            _show_pair(pair)
        for warning in comparison.warnings:
            print(f"warning: {warning}")


def _show_arms(comparison: "Comparison") -> None:
    scores = {name: score_named(name) for name in comparison.arms[0].scores}
    table = table_of("architecture", "seeds", *(score.title for score in scores.values()))
    for arm in comparison.arms:
        seeds = ", ".join("-" if seed is None else str(seed) for seed in arm.seeds)
        means = [
            f"{score.scale * arm.scores[name]:.{score.digits}f}" for name, score in scores.items()
        ]
        table.add_row(arm.name, seeds, *means)
    print_table(table)


def _show_pair(pair: "Pair") -> None:
    print(f"\n{pair.first} minus {pair.second} ({pair.seeds})")
    table = table_of("", "difference", "95 % interval", "p, Holm", "verdict")
    for name, difference in pair.measures.items():
        score = score_named(name)
        value, lower, upper = (
            f"{score.scale * x:+.{score.digits}f}"
            for x in (difference.value, difference.lower, difference.upper)
        )
        corrected = p_value_text(difference.holm_p_value)
        table.add_row(score.title, value, f"{lower} to {upper}", corrected, difference.verdict)
    print_table(table)
    if pair.tasks:
        order = sorted(pair.tasks, key=lambda label: -abs(pair.tasks[label].contribution))
        parts = (
            f"{label} {100 * pair.tasks[label].contribution:+.2f}" for label in order[:SHOWN_TASKS]
        )
        print(f"the tasks that weigh most: {', '.join(parts)}")
    for warning in pair.warnings:
        print(f"warning: {warning}")
