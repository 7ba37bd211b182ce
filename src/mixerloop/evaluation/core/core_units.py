"""The answers to CORE as units of a comparison, and each task's part in a difference."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from mixerloop.evaluation.comparison_result import TaskPart
from mixerloop.evaluation.core.answer_folder import SETTINGS, read_answers
from mixerloop.evaluation.core.core_result import CoreResult, CoreSettings
from mixerloop.evaluation.core.metric import VERSIONS, Version, all_centered, core, manipulation
from mixerloop.evaluation.core.resampling import resampled_accuracies
from mixerloop.evaluation.difference import Scores
from mixerloop.evaluation.units import Units
from mixerloop.files import read_sealed
from mixerloop.measures import MEASURES
from mixerloop.results import decode


@dataclass(frozen=True)
class CoreUnits(Units["CoreUnits"]):
    """The answers of one run to the tasks of CORE, and the baselines of the tasks."""

    right: Mapping[str, Bool[np.ndarray, " examples"]]
    """Whether each example was answered right, by task."""
    baselines: Mapping[Version, Mapping[str, float]]
    """Random baselines by version and task."""
    majority: Mapping[str, float]
    """The accuracy of always giving the most frequent answer, by task."""
    is_whole: bool
    """Whether all tasks of the bundle were answered, so that the mean is CORE."""
    not_comparable_because: tuple[str, ...]

    @classmethod
    def scores(cls, runs: Sequence["CoreUnits"], *, seed: int) -> dict[str, Scores]:
        """The means of all tasks and of the manipulation subset, by version of the baselines."""
        first = runs[0]
        right = {
            label: np.stack([units.right[label] for units in runs], axis=1) for label in first.right
        }
        points = {label: answers.mean(axis=0) for label, answers in right.items()}
        drawn = resampled_accuracies(right, seed=seed)
        name = "core" if first.is_whole else "tasks"
        scores: dict[str, Scores] = {}
        for version, baselines in first.baselines.items():
            scored, resampled = all_centered(points, baselines), all_centered(drawn, baselines)
            scores[f"{name}_{version}"] = Scores(core(scored), core(resampled))
            subset, drawn_subset = manipulation(scored), manipulation(resampled)
            if subset is not None and drawn_subset is not None:
                scores[f"manipulation_{version}"] = Scores(subset, drawn_subset)
        return scores

    def mismatch(self, first: "CoreUnits") -> str | None:
        """Units match if their tasks, example counts and baselines are equal."""
        if self._sizes() != first._sizes():
            return "answered other tasks than"
        if self.baselines != first.baselines:
            return "has other random baselines than"
        return None

    def warnings(self) -> Iterator[str]:
        """Reasons why the scores are not comparable with published scores."""
        for reason in self.not_comparable_because:
            yield f"not comparable with other results: {reason}"

    @classmethod
    def task_parts(
        cls, runs: Sequence["CoreUnits"], first: Sequence[int], second: Sequence[int]
    ) -> dict[str, TaskPart]:
        """Each task's part in the difference of the mean centered score."""
        units = runs[0]
        accuracies = {
            label: tuple(
                float(np.mean([runs[index].right[label].mean() for index in arm]))
                for arm in (first, second)
            )
            for label in units.right
        }
        gaps = {
            label: (first_mean - second_mean) / (1 - units.baselines["v1"][label])
            for label, (first_mean, second_mean) in accuracies.items()
        }
        total = sum(gaps.values())
        return {
            label: TaskPart(
                difference=gap,
                contribution=gap / len(gaps),
                share=gap / total if total else None,
                below_majority=max(accuracies[label]) <= units.majority[label],
            )
            for label, gap in gaps.items()
        }

    def _sizes(self) -> dict[str, int]:
        return {label: len(answers) for label, answers in self.right.items()}


def read_core_units(folder: Path, result: CoreResult) -> CoreUnits:
    """Read the answers of a result; they must have its settings and its number of examples."""
    answers = MEASURES["core"].details_in(folder)
    if decode(CoreSettings, read_sealed(answers / SETTINGS)) != result.settings:
        raise ValueError("its answers have other settings")
    tasks = result.tasks
    right = {
        label: np.array([answer.right for answer in read_answers(answers / f"{label}.jsonl")])
        for label in tasks
    }
    baselines: dict[Version, dict[str, float]] = {
        version: {label: task.baseline(version) for label, task in tasks.items()}
        for version in VERSIONS
    }
    if any(not 0 <= value < 1 for by_task in baselines.values() for value in by_task.values()):
        raise ValueError("a baseline is not between 0 and 1")
    if not tasks or any(len(right[label]) != task.examples for label, task in tasks.items()):
        raise ValueError("its answers are not those of the result")
    settings = result.settings
    return CoreUnits(
        {
            "bundle": settings.bundle,
            "context": settings.context,
            "limit": settings.limit,
            "corrections": settings.corrections,
            "compute_dtype": settings.compute_dtype,
        },
        right=right,
        baselines=baselines,
        majority={label: task.guess.majority for label, task in tasks.items()},
        is_whole=result.core_v1 is not None,
        not_comparable_because=result.not_comparable_because,
    )
