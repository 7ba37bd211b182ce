"""Architectures against each other: what differs, whether it is resolved, and which task did it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from mixerloop import config as configs
from mixerloop.config import RunConfig
from mixerloop.evaluation.core.metric import all_centered, core, manipulation
from mixerloop.evaluation.core.resampling import resampled_accuracies
from mixerloop.evaluation.difference import PAIRS_FROM, Difference, Scores, difference
from mixerloop.evaluation.kept_results import KeptCore, KeptHops, KeptNLL, KeptResults, read_results
from mixerloop.intervals import resampled_ratios

ONE_TASK_IS_MOST = 0.5
"""The share of a difference from which one task is said to carry it."""
NAMED_TASKS = 5
FEW_DOCUMENTS = 20
"""Below so many, an interval over documents is not to be trusted far."""
ASIDE = {*configs.MAY_CHANGE, "train.seed", "train.form"}
ASIDE |= {"train.evaluate_every", "train.evaluate_windows"}
"""What runs of one architecture may differ in; their data is known by its hash, not its path."""


@dataclass(frozen=True)
class Arm:
    """An architecture: runs that differ in their seed and in nothing else."""

    name: str
    runs: tuple[int, ...]
    """In the order of their seeds."""
    seeds: tuple[int | None, ...]


@dataclass(frozen=True)
class TaskPart:
    """A task's part in a difference of the mean centered score, by the paper's baselines."""

    difference: float
    """Of the centered scores."""
    contribution: float
    """To the difference of the mean."""
    share: float | None
    """Of the difference of the mean; none where that is zero."""
    below_majority: bool
    """Whether always giving the most frequent answer does as well as both, or better."""


@dataclass(frozen=True)
class Pair:
    """One architecture against another, first minus second."""

    first: str
    second: str
    seeds: str
    measures: dict[str, Difference]
    tasks: dict[str, TaskPart]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """All pairs of some architectures."""

    arms: tuple[Arm, ...]
    scores: dict[str, np.ndarray]
    """By measure, of each run: core or tasks, and manipulation, of each version; nll."""
    pairs: tuple[Pair, ...]
    warnings: tuple[str, ...]
    """Of all pairs alike."""


def compare_runs(paths: Sequence[Path | str], *, seed: int = 0) -> Comparison:
    """Compare runs, or results kept elsewhere, by what was measured of all of them."""
    return compare([read_results(Path(path)) for path in paths], seed=seed)


def compare(results: Sequence[KeptResults], *, seed: int = 0) -> Comparison:
    """Compare models that were measured on the same examples."""
    if len(results) < 2:
        raise ValueError("a comparison needs two runs or more")
    _check_different(results)
    arms = _arms(results)
    cores = [one.core for one in results if one.core is not None]
    nlls = [one.nll for one in results if one.nll is not None]
    measures: dict[str, Scores] = {}
    if len(cores) == len(results):
        measures |= _core_scores(results, cores, seed=seed)
    if len(nlls) == len(results):
        measures["nll"] = _nll_scores(results, nlls, seed=seed)
    hops = [one.hops for one in results if one.hops is not None]
    if len(hops) == len(results):
        measures["hops"] = _hops_scores(results, hops, seed=seed)
    if not measures:
        raise ValueError(
            "no measure was taken of all these runs; evaluate nll, hops or core on each"
        )
    asked = cores if len(cores) == len(results) else []
    pairs = [
        _pair(first, second, measures, asked, seed=seed) for first, second in combinations(arms, 2)
    ]
    return Comparison(
        arms=tuple(arms),
        scores={name: scores.points for name, scores in measures.items()},
        pairs=tuple(pairs),
        warnings=tuple(_common_warnings(results)),
    )


def _check_different(results: Sequence[KeptResults]) -> None:
    for first, second in combinations(results, 2):
        if (first.checkpoint, first.schedule) == (second.checkpoint, second.schedule):
            raise ValueError(f"{first.path} and {second.path} are the same model")


def _common_warnings(results: Sequence[KeptResults]) -> Iterator[str]:
    for name, missing in (
        ("CORE", [one for one in results if one.core is None]),
        ("NLL", [one for one in results if one.nll is None]),
    ):
        if missing:
            yield f"{name} is left out: it was not measured of {missing[0].path}"
    without_hops = [one for one in results if one.hops is None]
    if 0 < len(without_hops) < len(results):
        yield f"hops is left out: it was not measured of {without_hops[0].path}"
    if not any(one.core is None for one in results):
        kept = results[0].core
        assert kept is not None
        for reason in kept.not_comparable_because:
            yield f"not comparable with other results: {reason}"
    nll = results[0].nll
    if nll is not None and (worth := equal_documents(nll.tokens)) < FEW_DOCUMENTS:
        as_good = "" if worth > len(nll.tokens) - 1 else f", unequal ones: as good as {worth:.0f}"
        yield f"the intervals of the NLL come from {len(nll.nats)} documents{as_good}"


def equal_documents(tokens: np.ndarray) -> float:
    """How many documents of one length would vary as these do: few, if a few hold most tokens."""
    return float(tokens.sum()) ** 2 / float((tokens.astype(float) ** 2).sum())


def _arms(results: Sequence[KeptResults]) -> list[Arm]:
    """Runs with equal configs and other seeds are one architecture, unless there is no other."""
    groups: list[list[int]] = []
    for index, one in enumerate(results):
        for group in groups:
            if all(_differ_by_seed(results[other], one) for other in group):
                group.append(index)
                break
        else:
            groups.append([index])
    if len(groups) == 1:
        groups = [[index] for index in groups[0]]
    schedules = [results[group[0]].schedule for group in groups]
    names = [results[group[0]].path.name for group in groups]
    arms = []
    for number, group in enumerate(groups):
        group.sort(key=lambda index: (results[index].seed is None, results[index].seed))
        path = results[group[0]].path
        if schedules.count(schedules[number]) == 1:
            name = schedules[number]
        else:
            name = names[number] if names.count(names[number]) == 1 else str(path)
        arms.append(Arm(name, tuple(group), tuple(results[index].seed for index in group)))
    return arms


def _differ_by_seed(one: KeptResults, other: KeptResults) -> bool:
    if one.config is None or other.config is None or one.seed is None or one.seed == other.seed:
        return False
    if (one.trained_on, one.schedule) != (other.trained_on, other.schedule):
        return False
    if one.step != other.step and not _is_in_seconds(one.config):
        return False
    return not configs.differences(one.config, other.config).keys() - ASIDE


def _is_in_seconds(config: RunConfig) -> bool:
    """Whether runs end at steps of their own, because their budget is a time."""
    return config.train is not None and config.train.seconds is not None


def _check_agree(
    results: Sequence[KeptResults],
    kept: Sequence[KeptCore] | Sequence[KeptNLL] | Sequence[KeptHops],
    what: str,
) -> None:
    for one, found in zip(results, kept, strict=True):
        for key, value in kept[0].asked.items():
            if found.asked[key] != value:
                raise ValueError(
                    f"{one.path}: {what} was measured with {key} {found.asked[key]}, and of "
                    f"{results[0].path} with {value}"
                )


def _core_scores(
    results: Sequence[KeptResults], cores: Sequence[KeptCore], *, seed: int
) -> dict[str, Scores]:
    first = cores[0]
    _check_agree(results, cores, "CORE")
    for one, kept in zip(results, cores, strict=True):
        if _sizes(kept) != _sizes(first):
            raise ValueError(f"{one.path}: answered other tasks than {results[0].path}")
        if kept.baselines != first.baselines:
            raise ValueError(f"{one.path}: has other random baselines than {results[0].path}")
    right = {
        label: np.stack([kept.right[label] for kept in cores], axis=1) for label in first.right
    }
    points = {label: found.mean(axis=0) for label, found in right.items()}
    drawn = resampled_accuracies(right, seed=seed)
    name = "core" if first.is_whole else "tasks"
    found: dict[str, Scores] = {}
    for version, baselines in first.baselines.items():
        scored, resampled = all_centered(points, baselines), all_centered(drawn, baselines)
        found[f"{name}_{version}"] = Scores(core(scored), core(resampled))
        subset, of_resampled = manipulation(scored), manipulation(resampled)
        if subset is not None and of_resampled is not None:
            found[f"manipulation_{version}"] = Scores(subset, of_resampled)
    return found


def _sizes(kept: KeptCore) -> dict[str, int]:
    return {label: len(right) for label, right in kept.right.items()}


def _nll_scores(results: Sequence[KeptResults], kept: Sequence[KeptNLL], *, seed: int) -> Scores:
    _check_agree(results, kept, "NLL")
    for one, found in zip(results, kept, strict=True):
        if not np.array_equal(found.tokens, kept[0].tokens):
            raise ValueError(f"{one.path}: its documents are not those of {results[0].path}")
    nats = np.stack([found.nats for found in kept], axis=1)
    tokens = np.stack([found.tokens for found in kept], axis=1)
    return Scores(nats.sum(axis=0) / tokens.sum(axis=0), resampled_ratios(nats, tokens, seed=seed))


def _hops_scores(results: Sequence[KeptResults], kept: Sequence[KeptHops], *, seed: int) -> Scores:
    _check_agree(results, kept, "hops")
    for one, counts in zip(results, kept, strict=True):
        if not np.array_equal(counts.questions, kept[0].questions):
            raise ValueError(f"{one.path}: its sequences are not those of {results[0].path}")
    right = np.stack([counts.right for counts in kept], axis=1)
    questions = np.stack([counts.questions for counts in kept], axis=1)
    points = right.sum(axis=0) / questions.sum(axis=0)
    return Scores(points, resampled_ratios(right, questions, seed=seed))


def _pair(
    first: Arm, second: Arm, measures: dict[str, Scores], cores: Sequence[KeptCore], *, seed: int
) -> Pair:
    same_seeds = None not in first.seeds and first.seeds == second.seeds
    found = {
        name: difference(
            scores.of(first.runs), scores.of(second.runs), same_seeds=same_seeds, seed=seed
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
        warnings=tuple(_warnings(tasks)),
    )


def _seeds_in_words(first: int, second: int, *, same_seeds: bool) -> str:
    if first == second == 1:
        return "one seed each: the interval is over examples, and says nothing of other seeds"
    if same_seeds and first >= PAIRS_FROM:
        return f"{first} seeds, in pairs: the interval is over seeds and examples"
    if 1 in (first, second):
        return f"{first} and {second} seeds: the one is taken to vary as the others do"
    return f"{first} and {second} seeds: the interval is over seeds and examples"


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
    total = sum(gaps.values())
    return {
        label: TaskPart(
            difference=gap,
            contribution=gap / len(gaps),
            share=gap / total if total else None,
            below_majority=max(accuracies[label]) <= kept.majority[label],
        )
        for label, gap in gaps.items()
    }


def _warnings(tasks: dict[str, TaskPart]) -> Iterator[str]:
    """What a reader of a difference should hear before believing it."""
    for label, part in tasks.items():
        if part.share is not None and part.share > ONE_TASK_IS_MOST and len(tasks) > 1:
            total = sum(one.contribution for one in tasks.values())
            also = ", where both are below the most frequent answer" * part.below_majority
            yield (
                f"{label} alone makes {100 * part.contribution:+.2f} of the difference of "
                f"{100 * total:+.2f}{also}"
            )
    if below := [label for label, part in tasks.items() if part.below_majority]:
        some = ", ".join(below[:NAMED_TASKS]) + ", ..." * (len(below) > NAMED_TASKS)
        yield (
            f"both are no better than always the most frequent answer on {len(below)} of "
            f"{len(tasks)} tasks: {some}"
        )


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
        "warnings": list(comparison.warnings),
    }
