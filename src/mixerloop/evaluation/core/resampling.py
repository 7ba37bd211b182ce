"""Accuracies on resampled examples, for intervals over examples."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float

from mixerloop.intervals import RESAMPLES


def resampled_accuracies(
    right: Mapping[str, Bool[np.ndarray, "examples runs"]], *, seed: int = 0
) -> dict[str, Float[np.ndarray, "resamples runs"]]:
    """Accuracies of several runs in resamples of each task's examples, the same for all runs.

    All that matters of an example is its pattern: which of the runs answered it right. Drawing
    examples therefore equals drawing patterns with their frequencies. That takes one multinomial
    draw per resample instead of one draw per example.
    """
    generator = np.random.default_rng(seed)
    accuracies = {}
    for label, of_task in right.items():
        patterns, counts = np.unique(of_task, axis=0, return_counts=True)
        drawn = generator.multinomial(len(of_task), counts / len(of_task), size=RESAMPLES)
        accuracies[label] = drawn @ patterns / len(of_task)
    return accuracies
