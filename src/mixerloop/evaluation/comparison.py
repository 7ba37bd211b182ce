"""Architectures against each other: what differs, whether it is resolved, and which task did it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from mixerloop import config as configs
from mixerloop.evaluation.core.metric import all_centered, core, manipulation
from mixerloop.evaluation.core.resampling import resampled_accuracies
from mixerloop.evaluation.difference import PAIRS_FROM, Difference, Scores, difference
from mixerloop.evaluation.intervals import resampled_ratios
from mixerloop.evaluation.kept_results import KeptCore, KeptResults
from mixerloop.notation import notation

ONE_TASK_IS_MOST = 0.5
"""The share of a CORE difference from which one task is said to carry it."""
ASIDE = {*configs.MAY_CHANGE, "train.seed", "train.implementation"}
ASIDE |= {"train.evaluate_every", "train.evaluate_windows"}
"""What runs of one architecture may differ in."""


@dataclass(frozen=True)
class Arm:
    """An architecture: runs that differ in their seed and in nothing else."""

    name: str
    runs: tuple[int, ...]
    seeds: tuple[int | None, ...]


@dataclass(frozen=True)
class TaskPart:
    """A task's part in a difference of CORE."""

    difference: float
    """Of the centered scores."""
    contribution: float
    """To the difference of CORE."""
    share: float | None
    """Of the difference of CORE; none where that is zero."""
    below_majority: bool
    """Whether always giving the most frequent answer beats both."""


@dataclass(frozen=True)
class Pair:
    """One architecture against another, first minus second."""

    first: str
    second: str
    seeds: str
    measures: dict[str, Difference]
    """By name: core_v1, core_v2, manipulation_v1, manipulation_v2, nll."""
    tasks: dict[str, TaskPart]
    """By the first version of the baselines, the paper's."""
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """All pairs of some architectures."""

    arms: tuple[Arm, ...]
    scores: dict[str, np.ndarray]
    """By measure, of each run."""
    pairs: tuple[Pair, ...]


def compare(results: Sequence[KeptResults], *, seed: int = 0) -> Comparison:
    """Compare runs that were measured on the same examples."""
    if len(results) < 2:
        raise ValueError("a comparison needs two runs or more")
    paths = [one.path.resolve() for one in results]
    for one, path in zip(results, paths, strict=True):
        if paths.count(path) > 1:
            raise ValueError(f"{one.path} is given twice")
    arms = _arms(results)
    cores = [one.core for one in results if one.core is not None]
    measures: dict[str, Scores] = {}
    if len(cores) == len(results):
        measures |= _core_scores(results, cores, seed=seed)
    if all(one.nll is not None for one in results):
        measures["nll"] = _nll_scores(results, seed=seed)
    if not measures:
        raise ValueError("no measure was taken of all these runs; evaluate nll or core on each")
    pairs = [
        _pair(first, second, measures, cores if "core_v1" in measures else [], seed=seed)
        for first, second in combinations(arms, 2)
    ]
    points = {name: scores.points for name, scores in measures.items()}
    return Comparison(tuple(arms), points, tuple(pairs))


def _arms(results: Sequence[KeptResults]) -> list[Arm]:
    """Runs with equal configs are one architecture, unless there would be no other."""
    groups: list[list[int]] = []
    for index, one in enumerate(results):
        for group in groups:
            if not configs.differences(results[group[0]].config, one.config).keys() - ASIDE:
                group.append(index)
                break
        else:
            groups.append([index])
    if len(groups) == 1:
        groups = [[index] for index in groups[0]]
    schedules = [notation(results[group[0]].config.model.occurrences()) for group in groups]
    return [
        Arm(
            name=schedule if schedules.count(schedule) == 1 else results[group[0]].path.name,
            runs=tuple(group),
            seeds=tuple(results[index].seed for index in group),
        )
        for group, schedule in zip(groups, schedules, strict=True)
    ]


def _core_scores(
    results: Sequence[KeptResults], cores: Sequence[KeptCore], *, seed: int
) -> dict[str, Scores]:
    first = cores[0]
    for one, kept in zip(results, cores, strict=True):
        for key, value in first.asked.items():
            if kept.asked[key] != value:
                raise ValueError(
                    f"{one.path}: CORE was asked with {key} {kept.asked[key]}, and of "
                    f"{results[0].path} with {value}"
                )
        if _sizes(kept) != _sizes(first):
            raise ValueError(f"{one.path}: answered other examples than {results[0].path}")
    right = {
        label: np.stack([kept.right[label] for kept in cores], axis=1) for label in first.right
    }
    points = {label: found.mean(axis=0) for label, found in right.items()}
    drawn = resampled_accuracies(right, seed=seed)
    found: dict[str, Scores] = {}
    for version, baselines in first.baselines.items():
        scored, resampled = all_centered(points, baselines), all_centered(drawn, baselines)
        found[f"core_{version}"] = Scores(core(scored), core(resampled))
        subset, of_resampled = manipulation(scored), manipulation(resampled)
        if subset is not None and of_resampled is not None:
            found[f"manipulation_{version}"] = Scores(subset, of_resampled)
    return found


def _sizes(kept: KeptCore) -> dict[str, int]:
    return {label: len(right) for label, right in kept.right.items()}


def _nll_scores(results: Sequence[KeptResults], *, seed: int) -> Scores:
    kept = [one.nll for one in results]
    first = kept[0]
    assert first is not None
    for one, nll in zip(results, kept, strict=True):
        assert nll is not None
        if (nll.data, nll.context) != (first.data, first.context) or not np.array_equal(
            nll.tokens, first.tokens
        ):
            raise ValueError(
                f"{one.path}: its NLL is of other data or windows than that of {results[0].path}"
            )
    nats = np.stack([nll.nats for nll in kept if nll is not None], axis=1)
    tokens = np.stack([nll.tokens for nll in kept if nll is not None], axis=1)
    return Scores(nats.sum(axis=0) / tokens.sum(axis=0), resampled_ratios(nats, tokens, seed=seed))


def _pair(
    first: Arm,
    second: Arm,
    measures: dict[str, Scores],
    cores: Sequence[KeptCore],
    *,
    seed: int,
) -> Pair:
    same_seeds = None not in first.seeds and sorted(map(str, first.seeds)) == sorted(
        map(str, second.seeds)
    )
    order = sorted(range(len(first.runs)), key=lambda index: str(first.seeds[index]))
    ordered_first = [first.runs[index] for index in order]
    order = sorted(range(len(second.runs)), key=lambda index: str(second.seeds[index]))
    ordered_second = [second.runs[index] for index in order]
    found = {
        name: difference(
            scores.of(ordered_first), scores.of(ordered_second), same_seeds=same_seeds, seed=seed
        )
        for name, scores in measures.items()
    }
    tasks = _task_parts(first, second, cores) if cores else {}
    return Pair(
        first=first.name,
        second=second.name,
        seeds=_seeds_in_words(len(first.runs), len(second.runs), same_seeds=same_seeds),
        measures=found,
        tasks=tasks,
        warnings=tuple(_warnings(tasks, found.get("core_v1"))),
    )


def _seeds_in_words(first: int, second: int, *, same_seeds: bool) -> str:
    if first == second == 1:
        return "one seed each: the interval is over examples, and says nothing of other seeds"
    if same_seeds and first >= PAIRS_FROM:
        return f"{first} seeds, in pairs"
    return f"{first} and {second} seeds"


def _task_parts(first: Arm, second: Arm, cores: Sequence[KeptCore]) -> dict[str, TaskPart]:
    kept = cores[0]
    accuracies = {
        label: tuple(
            float(np.mean([cores[run].right[label].mean() for run in arm.runs]))
            for arm in (first, second)
        )
        for label in kept.right
    }
    gaps = {
        label: (one - other) / (1 - kept.baselines["v1"][label])
        for label, (one, other) in accuracies.items()
    }
    total = sum(gaps.values()) / len(gaps)
    return {
        label: TaskPart(
            difference=gap,
            contribution=gap / len(gaps),
            share=gap / len(gaps) / total if total else None,
            below_majority=max(accuracies[label]) < kept.majority[label],
        )
        for label, gap in gaps.items()
    }


def _warnings(tasks: dict[str, TaskPart], of_core: Difference | None) -> list[str]:
    """What a reader of a CORE difference should hear before believing it."""
    if of_core is None or not of_core.difference:
        return []
    said = []
    largest = max(tasks, key=lambda label: abs(tasks[label].contribution))
    part = tasks[largest]
    if part.share is not None and part.share > ONE_TASK_IS_MOST:
        said.append(
            f"{largest} alone makes {100 * part.contribution:+.2f} of the CORE difference of "
            f"{100 * of_core.difference:+.2f}"
        )
    if part.below_majority:
        said.append(f"on {largest}, which weighs most, both are below the most frequent answer")
    if below := [label for label, one in tasks.items() if one.below_majority and label != largest]:
        said.append(f"both are below the most frequent answer on {', '.join(below)}")
    return said


def to_json(comparison: Comparison, results: Sequence[KeptResults]) -> dict[str, Any]:
    """As it is printed."""
    return {
        "arms": [
            {
                "name": arm.name,
                "runs": [str(results[index].path) for index in arm.runs],
                "seeds": list(arm.seeds),
                **{
                    name: float(points[list(arm.runs)].mean())
                    for name, points in comparison.scores.items()
                },
            }
            for arm in comparison.arms
        ],
        "pairs": [
            {
                "first": pair.first,
                "second": pair.second,
                "seeds": pair.seeds,
                **{name: found.to_json() for name, found in pair.measures.items()},
                "tasks": {label: vars(part) for label, part in pair.tasks.items()},
                "warnings": list(pair.warnings),
            }
            for pair in comparison.pairs
        ],
    }
