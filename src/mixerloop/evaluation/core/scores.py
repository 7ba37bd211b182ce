"""The result of an evaluation: accuracies, centered scores and CORE, with intervals."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mixerloop.evaluation.core.answer_folder import Work
from mixerloop.evaluation.core.answers import Answer
from mixerloop.evaluation.core.asking import AskedTask
from mixerloop.evaluation.core.bundle import Bundle
from mixerloop.evaluation.core.metric import (
    VERSIONS,
    Guess,
    all_centered,
    centered,
    core,
    guess,
    manipulation,
)
from mixerloop.evaluation.core.resampling import resampled_accuracies
from mixerloop.intervals import Estimate, estimate
from mixerloop.paper import CORE_CONTEXT, CORE_MANIPULATION, CORE_UPPER


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """One task."""

    accuracy: float
    accuracy_interval: tuple[float, float]
    baseline_v1: float
    baseline_v2: float
    centered_v1: float
    centered_v2: float
    examples: int
    cropped_share: float
    guess: Guess
    work: Work


@dataclass(frozen=True, kw_only=True)
class CoreScore:
    """All tasks; the aggregates are none unless every task they need was asked."""

    tasks: dict[str, TaskScore]
    core: dict[str, Estimate | None]
    """By version of the baselines."""
    manipulation: dict[str, Estimate | None]
    guess_core: dict[str, dict[str, float] | None]
    """What CORE would be for guessing, by version and kind of guess."""
    not_comparable_because: list[str]

    def to_json(self) -> dict[str, Any]:
        """As it is printed and kept."""
        result: dict[str, Any] = {}
        for version in VERSIONS:
            for name, of in (("core", self.core), ("manipulation", self.manipulation)):
                found = of[version]
                result[f"{name}_{version}"] = None if found is None else found.value
                result[f"{name}_{version}_interval"] = None if found is None else found[1:]
            result[f"guess_core_{version}"] = self.guess_core[version]
        works = [score.work for score in self.tasks.values()]
        return result | {
            "comparable": not self.not_comparable_because,
            "not_comparable_because": self.not_comparable_because,
            "tokens_plain": sum(work.tokens_plain for work in works),
            "tokens_processed": sum(work.tokens_processed for work in works),
            "tasks": {
                label: {k: v for k, v in asdict(score).items() if k != "work"} | asdict(score.work)
                for label, score in self.tasks.items()
            },
        }


def summarise(
    bundle: Bundle,
    asked: list[AskedTask],
    answers: Mapping[str, list[Answer]],
    works: Mapping[str, Work],
    *,
    context: int,
) -> CoreScore:
    """Score the answers to the tasks that were asked."""
    right = {label: np.array([[one.right] for one in found]) for label, found in answers.items()}
    accuracies = {label: float(of_task.mean()) for label, of_task in right.items()}
    resampled = {label: found[:, 0] for label, found in resampled_accuracies(right).items()}
    baselines = {"v1": bundle.baselines_v1, "v2": bundle.baselines_v2}
    guesses = {one.task.label: guess(one.examples) for one in asked}
    tasks = {
        label: TaskScore(
            accuracy=accuracy,
            accuracy_interval=estimate(accuracy, resampled[label])[1:],
            baseline_v1=baselines["v1"][label],
            baseline_v2=baselines["v2"][label],
            centered_v1=centered(accuracy, baselines["v1"][label]),
            centered_v2=centered(accuracy, baselines["v2"][label]),
            examples=len(answers[label]),
            cropped_share=float(np.mean([one.cropped for one in answers[label]])),
            guess=guesses[label],
            work=works[label],
        )
        for label, accuracy in accuracies.items()
    }
    whole = len(asked) == len(bundle.tasks)
    cores, manipulations, guess_core = {}, {}, {}
    for version in VERSIONS:
        point = all_centered(accuracies, baselines[version])
        drawn = all_centered(resampled, baselines[version])
        cores[version] = estimate(core(point), core(drawn)) if whole else None
        subset, drawn_subset = manipulation(point), manipulation(drawn)
        manipulations[version] = (
            None if subset is None or drawn_subset is None else estimate(subset, drawn_subset)
        )
        guess_core[version] = _guess_core(guesses, baselines[version]) if whole else None
    return CoreScore(
        tasks=tasks,
        core=cores,
        manipulation=manipulations,
        guess_core=guess_core,
        not_comparable_because=_reasons(asked, context=context),
    )


def _guess_core(guesses: Mapping[str, Guess], baselines: Mapping[str, float]) -> dict[str, float]:
    return {
        kind: core(all_centered({k: getattr(v, kind) for k, v in guesses.items()}, baselines))
        for kind in ("uniform", "majority")
    }


def _reasons(asked: list[AskedTask], *, context: int) -> list[str]:
    """Why a result must not stand beside published ones."""
    reasons = []
    labels = {one.task.label for one in asked}
    if missing := {*CORE_UPPER, *CORE_MANIPULATION} - labels:
        reasons.append(f"{len(missing)} of the 22 tasks were not asked")
    if others := labels - {*CORE_UPPER, *CORE_MANIPULATION}:
        reasons.append(f"{len(others)} tasks are not CORE's")
    if limited := sum(one.limited for one in asked):
        reasons.append(f"{limited} tasks were limited, and with them the examples shown as shots")
    if context != CORE_CONTEXT:
        reasons.append(f"the context was {context:,} tokens, not {CORE_CONTEXT:,}")
    return reasons
