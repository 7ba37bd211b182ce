"""The part of transport that is rounding, measured by running the policies in a wider type."""

import copy
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float

from mixerloop.config import ComputeDtype
from mixerloop.data.windows import DrawnWindows
from mixerloop.model.looped_lm import LoopedLM, in_form
from mixerloop.ops.precision import compute_in
from mixerloop.schedule import Schedule
from mixerloop.transport.geometry import marginal_itr
from mixerloop.transport.policies import mixer_passes
from mixerloop.transport.trajectories import Readout, by_window_gram, mixing_layers, readouts
from mixerloop.transport.windows import batches_of

NOISE_WINDOWS = 2
"""The number of windows that run in the wider type; rounding is similar in all windows."""


@dataclass(frozen=True)
class NoiseFloor:
    """The effect of rounding on the figures of each pass."""

    wider_type: str
    windows: int
    hellinger_squared: Float[np.ndarray, " passes"]
    """Half the squared length of the rounding error of an increment, on the scale of an effect."""
    share: Float[np.ndarray, " passes"]
    """The squared length of the rounding error divided by that of the increment."""
    marginal_itr: Float[np.ndarray, " passes"]
    """The decrease of the marginal ITR of these windows in the wider type."""


@torch.inference_mode()
def noise_floor(
    model: LoopedLM,
    windows: DrawnWindows,
    *,
    schedule: Schedule | None = None,
    compute_dtype: ComputeDtype = "float32",
) -> NoiseFloor:
    """Compare increments in the compute type with increments in the next wider type.

    A copy of the model in a wider type runs in form torch, since form fla has no float64.
    """
    schedule = model.schedule if schedule is None else schedule
    narrow_is_float32 = compute_dtype == "float32"
    wide_model = model
    if narrow_is_float32 or model.is_narrow:
        dtype = torch.float64 if narrow_is_float32 else torch.float32
        wide_model = copy.deepcopy(in_form(model, "torch")).to(dtype)
    most = max(len(mixer_passes(schedule, layer)) for layer in mixing_layers(schedule))
    device = model.embedding.weight.device
    _, batch = next(batches_of(windows, device, NOISE_WINDOWS))
    noise, counts = np.zeros(most), np.zeros(most)
    narrow_gram, wide_gram = np.zeros((most, most)), np.zeros((most, most))
    with compute_in(compute_dtype, device.type):
        narrow = list(readouts(model, batch, schedule))
    for before, after in zip(narrow, readouts(wide_model, batch, schedule), strict=True):
        size = len(after) - 1
        noise[:size] += _squares(before, after)
        narrow_gram[:size, :size] += by_window_gram(before).sum(axis=0)
        wide_gram[:size, :size] += by_window_gram(after).sum(axis=0)
        counts[:size] += batch.targets.numel()
    return NoiseFloor(
        wider_type="float64" if narrow_is_float32 else "float32",
        windows=len(batch.tokens),
        hellinger_squared=noise / (2 * counts),
        share=noise / np.maximum(np.diagonal(wide_gram), np.finfo(float).tiny),
        marginal_itr=np.maximum(0.0, marginal_itr(narrow_gram) - marginal_itr(wide_gram)),
    )


def _squares(narrow: list[Readout], wide: list[Readout]) -> np.ndarray:
    """The squared length of the rounding error of each increment."""
    errors = [after.root - before.root for before, after in zip(narrow, wide, strict=True)]
    return np.array([float((b - a).double().square().sum()) for a, b in pairwise(errors)])
