"""From answers to figures: accuracies, centered scores and CORE, with intervals."""

from collections.abc import Mapping

import numpy as np

from mixerloop.evaluation.core.answer_folder import Work
from mixerloop.evaluation.core.answers import Answer
from mixerloop.evaluation.core.asking import AskedTask
from mixerloop.evaluation.core.bundle import Bundle
from mixerloop.evaluation.core.core_result import CoreFigures, TaskScore
from mixerloop.evaluation.core.metric import (
    VERSIONS,
    Guess,
    Version,
    all_centered,
    centered,
    core,
    guess,
    manipulation,
)
from mixerloop.evaluation.core.resampling import resampled_accuracies
from mixerloop.intervals import estimate
from mixerloop.paper import CORE_CONTEXT, CORE_MANIPULATION, CORE_UPPER
from mixerloop.results import Estimate

NOTHING: Mapping[str, int] = {}


def summarise(
    bundle: Bundle,
    asked: list[AskedTask],
    answers: Mapping[str, list[Answer]],
    works: Mapping[str, Work],
    *,
    context: int,
    corrected: Mapping[str, int] = NOTHING,
) -> CoreFigures:
    """Compute all figures from the answers to the tasks in `asked`.

    `corrected` has the number of examples of each task whose answer was corrected.
    """
    right = {
        label: np.array([[answer.right] for answer in of_task])
        for label, of_task in answers.items()
    }
    accuracies = {label: float(of_task.mean()) for label, of_task in right.items()}
    resampled = {label: drawn[:, 0] for label, drawn in resampled_accuracies(right).items()}
    baselines = {"v1": bundle.baselines_v1, "v2": bundle.baselines_v2}
    guesses = {of_task.task.label: guess(of_task.examples) for of_task in asked}
    tasks = {
        label: TaskScore(
            accuracy=estimate(accuracy, resampled[label], over="examples"),
            baseline_v1=baselines["v1"][label],
            baseline_v2=baselines["v2"][label],
            centered_v1=centered(accuracy, baselines["v1"][label]),
            centered_v2=centered(accuracy, baselines["v2"][label]),
            examples=len(answers[label]),
            cropped_share=float(np.mean([answer.cropped for answer in answers[label]])),
            guess=guesses[label],
            tokens_plain=works[label].tokens_plain,
            tokens_processed=works[label].tokens_processed,
            seconds=works[label].seconds,
        )
        for label, accuracy in accuracies.items()
    }
    is_whole = len(asked) == len(bundle.tasks)
    cores: dict[Version, Estimate | None] = {}
    manipulations: dict[Version, Estimate | None] = {}
    guess_core: dict[Version, Guess | None] = {}
    for version in VERSIONS:
        point = all_centered(accuracies, baselines[version])
        drawn = all_centered(resampled, baselines[version])
        cores[version] = estimate(core(point), core(drawn), over="examples") if is_whole else None
        subset, drawn_subset = manipulation(point), manipulation(drawn)
        manipulations[version] = (
            None
            if subset is None or drawn_subset is None
            else estimate(subset, drawn_subset, over="examples")
        )
        guess_core[version] = _guess_core(guesses, baselines[version]) if is_whole else None
    reasons = _reasons(asked, context=context, corrected=corrected)
    return CoreFigures(
        core_v1=cores["v1"],
        manipulation_v1=manipulations["v1"],
        guess_core_v1=guess_core["v1"],
        core_v2=cores["v2"],
        manipulation_v2=manipulations["v2"],
        guess_core_v2=guess_core["v2"],
        comparable=not reasons,
        not_comparable_because=tuple(reasons),
        tokens_plain=sum(work.tokens_plain for work in works.values()),
        tokens_processed=sum(work.tokens_processed for work in works.values()),
        tasks=tasks,
    )


def _guess_core(guesses: Mapping[str, Guess], baselines: Mapping[str, float]) -> Guess:
    uniform = {label: guess.uniform for label, guess in guesses.items()}
    majority = {label: guess.majority for label, guess in guesses.items()}
    return Guess(
        uniform=core(all_centered(uniform, baselines)),
        majority=core(all_centered(majority, baselines)),
    )


def _reasons(asked: list[AskedTask], *, context: int, corrected: Mapping[str, int]) -> list[str]:
    """Reasons why a result is not comparable with published results."""
    reasons = []
    labels = {of_task.task.label for of_task in asked}
    if missing := {*CORE_UPPER, *CORE_MANIPULATION} - labels:
        reasons.append(f"{len(missing)} of the 22 tasks were not asked")
    if others := labels - {*CORE_UPPER, *CORE_MANIPULATION}:
        reasons.append(f"{len(others)} tasks are not CORE's")
    if limited := sum(of_task.limited for of_task in asked):
        reasons.append(f"{limited} tasks were limited, and with them the examples shown as shots")
    if corrected:
        tasks = ", ".join(f"{number} of {label}" for label, number in corrected.items())
        reasons.append(f"answers were corrected: {tasks}")
    if context != CORE_CONTEXT:
        reasons.append(f"the context was {context:,} tokens, not {CORE_CONTEXT:,}")
    return reasons
