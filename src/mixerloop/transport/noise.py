"""How much of what is measured is rounding: the same policies again in a wider type."""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mixerloop.config import ComputeDtype
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.ops.precision import compute_in
from mixerloop.schedule import Schedule
from mixerloop.transport.metrics import marginal_itr
from mixerloop.transport.trajectory import Windows, increments, layer_policies, layer_readouts

NOISE_WINDOWS = 2
"""Windows the wider type is run on; rounding is much the same in all."""


@dataclass(frozen=True)
class NoiseFloor:
    """What rounding alone makes of each pass."""

    wider_type: str
    windows: int
    hellinger_squared: Float[np.ndarray, " passes"]
    """Half the squared length of the rounding in an increment, as for an effect."""
    share: Float[np.ndarray, " passes"]
    """Of an increment's squared length, what is other in the wider type."""
    marginal_itr: Float[np.ndarray, " passes"]
    """How much of the marginal ITR of these windows the wider type takes away."""


@torch.inference_mode()
def noise_floor(
    model: LoopedLM,
    windows: Windows,
    *,
    schedule: Schedule | None = None,
    compute_dtype: ComputeDtype = "float32",
) -> NoiseFloor:
    """Compare increments in the compute type with those in the next wider one."""
    schedule = model.schedule if schedule is None else schedule
    narrow_is_float32 = compute_dtype == "float32"
    wide_model = copy.deepcopy(model).double() if narrow_is_float32 else model
    policies = list(layer_policies(schedule).values())
    device = model.embedding.weight.device
    tokens = torch.from_numpy(windows.tokens[:NOISE_WINDOWS]).to(device)
    positions = torch.from_numpy(windows.positions).to(device)
    arguments = (tokens, positions, policies, schedule, "shared")
    most = max(map(len, policies))
    noise, signal, counts = np.zeros(most), np.zeros(most), np.zeros(most)
    narrow_gram, wide_gram = np.zeros((most, most)), np.zeros((most, most))
    with compute_in(compute_dtype, device.type):
        narrow = [_increments(logits) for logits in layer_readouts(model, *arguments)]
    for before, logits in zip(narrow, layer_readouts(wide_model, *arguments), strict=True):
        wide = _increments(logits)
        size = len(wide)
        noise[:size] += (wide - before).square().sum((1, 2, 3)).numpy()
        signal[:size] += wide.square().sum((1, 2, 3)).numpy()
        counts[:size] += wide.shape[1] * wide.shape[2]
        narrow_gram[:size, :size] += _gram(before)
        wide_gram[:size, :size] += _gram(wide)
    return NoiseFloor(
        wider_type="float64" if narrow_is_float32 else "float32",
        windows=len(tokens),
        hellinger_squared=noise / (2 * counts),
        share=noise / np.maximum(signal, np.finfo(float).tiny),
        marginal_itr=np.maximum(0.0, marginal_itr(narrow_gram) - marginal_itr(wide_gram)),
    )


def _increments(
    logits: Float[Tensor, "policies windows positions vocab"],
) -> Float[Tensor, "passes windows positions vocab"]:
    return increments(logits.log_softmax(-1)).cpu()


def _gram(steps: Float[Tensor, "passes windows positions vocab"]) -> np.ndarray:
    flat = steps.flatten(1)
    return (flat @ flat.T).numpy()
