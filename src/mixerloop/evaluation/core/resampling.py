"""How far accuracies would move if other examples of the same kind had been asked."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float

from mixerloop.intervals import RESAMPLES


def resampled_accuracies(
    right: Mapping[str, Bool[np.ndarray, "examples runs"]], *, seed: int = 0
) -> dict[str, Float[np.ndarray, "resamples runs"]]:
    """Accuracies of several runs in resamples of each task's examples, the same for all runs.

    An example counts only by which of the runs had it right. To draw examples is therefore to draw
    from these patterns with their frequencies, which takes one draw instead of one per example.
    """
    generator = np.random.default_rng(seed)
    found = {}
    for label, of_task in right.items():
        patterns, counts = np.unique(of_task, axis=0, return_counts=True)
        drawn = generator.multinomial(len(of_task), counts / len(of_task), size=RESAMPLES)
        found[label] = drawn @ patterns / len(of_task)
    return found
