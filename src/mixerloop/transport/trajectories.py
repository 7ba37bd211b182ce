"""Run the policies of each layer, and sum their trajectories at the readout by window."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mixerloop.config import ComputeDtype
from mixerloop.data.windows import DrawnWindows
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.ops.precision import check_finite, compute_in
from mixerloop.ops.workers import map_on_cores
from mixerloop.schedule import Schedule
from mixerloop.transport.executor import shared_residuals
from mixerloop.transport.policies import Policy, intact, mixer_passes, restored
from mixerloop.transport.windows import WINDOWS_AT_ONCE, Batch, batches_of

Engine = Literal["shared", "plain"]
"""`shared` runs all policies in one walk.

`plain` is the definition: a whole forward, with all logits, for each policy.
"""

Progress = Callable[[int, int], None]
"""Called with the number of measured windows and the total."""


@dataclass(frozen=True)
class Trajectories:
    """Sums of every layer and window; they are zero for passes that a layer does not run."""

    layers: tuple[int, ...]
    num_passes: tuple[int, ...]
    """The number of mixer passes of each layer."""
    gram: Float[np.ndarray, "layers windows passes passes"]
    """The Gram matrices of the increments, summed over positions."""
    hellinger_squared: Float[np.ndarray, "layers windows passes"]
    """Mean over positions of half the squared length of an increment."""
    target_gain: Float[np.ndarray, "layers windows passes"]
    """Mean over positions of the target's increase in log probability, in nats."""
    top1_flips: Float[np.ndarray, "layers windows passes"]
    """The share of positions where a pass changes the most likely token."""
    intact_max_abs_error: float
    """Largest difference between the logits with every pass restored and the unmodified logits."""


def measure(
    model: LoopedLM,
    windows: DrawnWindows,
    *,
    schedule: Schedule | None = None,
    compute_dtype: ComputeDtype = "float32",
    engine: Engine = "shared",
    windows_at_once: int = WINDOWS_AT_ONCE,
    progress: Progress | None = None,
) -> Trajectories:
    """Restore the context of the mixer passes of each layer, one pass after another.

    Memory does not grow with the number of windows. Batches of windows run on all cores. The sums
    are the same bit for bit on any number of cores.
    """
    schedule = model.schedule if schedule is None else schedule
    layers = mixing_layers(schedule)
    counts = [len(mixer_passes(schedule, layer)) for layer in layers]
    shape = (len(layers), len(windows.tokens), max(counts))
    gram = np.zeros((*shape, max(counts)))
    effects, gains, flips = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    device = model.embedding.weight.device
    error = 0.0

    def sums_of(batch: tuple[slice, Batch]) -> tuple[slice, list[_LayerSums]]:
        here, tokens = batch
        with torch.inference_mode(), compute_in(compute_dtype, device.type):
            return here, list(_layer_sums(model, tokens, schedule, engine))

    batches = batches_of(windows, device, windows_at_once)
    for here, by_layer in map_on_cores(sums_of, batches, device=device):
        for row, (count, sums) in enumerate(zip(counts, by_layer, strict=True)):
            check_finite(sums.gram, sums.target_gains, what="logits")
            error = max(error, sums.intact_max_abs_error)
            gram[row, here, :count, :count] = sums.gram
            squares = np.diagonal(sums.gram, axis1=1, axis2=2)
            effects[row, here, :count] = squares / (2 * len(windows.positions))
            gains[row, here, :count] = sums.target_gains
            flips[row, here, :count] = sums.top1_flips
        if progress is not None:
            progress(here.stop, len(windows.tokens))
    return Trajectories(tuple(layers), tuple(counts), gram, effects, gains, flips, error)


class _LayerSums(NamedTuple):
    """The effects of one layer's passes at the readout of some windows."""

    gram: Float[np.ndarray, "windows passes passes"]
    target_gains: Float[np.ndarray, "windows passes"]
    top1_flips: Float[np.ndarray, "windows passes"]
    intact_max_abs_error: float


def _layer_sums(
    model: LoopedLM, batch: Batch, schedule: Schedule, engine: Engine
) -> Iterator[_LayerSums]:
    unmodified = model(batch.tokens, positions=batch.positions, schedule=schedule)
    for of_layer in readouts(model, batch, schedule, engine):
        yield _LayerSums(
            gram=by_window_gram(of_layer),
            target_gains=_target_gains(of_layer),
            top1_flips=_top1_flips(of_layer),
            intact_max_abs_error=float((of_layer[-1].logits - unmodified).abs().max()),
        )


def mixing_layers(schedule: Schedule) -> list[int]:
    """The layers whose mixer is in the schedule; at least one must be."""
    layers = sorted({occurrence.layer for occurrence in schedule if occurrence.sublayer == "mixer"})
    if not layers:
        raise ValueError("this schedule runs no mixer, so there is no context to restore")
    return layers


class Readout(NamedTuple):
    """The quantities of a prediction that trajectories need."""

    logits: Float[Tensor, "windows positions vocab"]
    root: Float[Tensor, "windows positions vocab"]
    """The square root of the predicted distribution."""
    at_target: Float[Tensor, "windows positions"]
    """The log probability of the target, the next token of the window."""
    top: Int[Tensor, "windows positions"]
    """The most likely token."""


def readouts(
    model: LoopedLM, batch: Batch, schedule: Schedule, engine: Engine = "shared"
) -> Iterator[list[Readout]]:
    """For each layer, the readouts with 0, 1, 2 and so on up to all mixer passes restored."""
    logits_by_layer = _shared_logits if engine == "shared" else _plain_logits
    unmodified: Readout | None = None
    for of_layer in logits_by_layer(model, batch, schedule):
        *earlier, last = of_layer
        if unmodified is None or unmodified.logits is not last:
            unmodified = _read(last, batch.targets)
        yield [*(_read(logits, batch.targets) for logits in earlier), unmodified]


def _shared_logits(model: LoopedLM, batch: Batch, schedule: Schedule) -> Iterator[Iterator[Tensor]]:
    """The logits of all policies from one walk.

    With all passes restored the policy is the unmodified model, which is read out once for all
    layers.
    """
    policies: list[list[Policy]] = [
        [
            restored(schedule, layer=layer, num_intact=number)
            for number in range(len(mixer_passes(schedule, layer)))
        ]
        for layer in mixing_layers(schedule)
    ]
    unmodified, policy_residuals = shared_residuals(
        model,
        batch.tokens,
        batch.positions,
        [policy for of_layer in policies for policy in of_layer],
        intact=intact(schedule),
    )
    last = model.read_out(unmodified)
    residuals = iter(policy_residuals)
    for of_layer in policies:
        yield (*(model.read_out(next(residuals)) for _ in of_layer), last)  # pyright: ignore


def _plain_logits(model: LoopedLM, batch: Batch, schedule: Schedule) -> Iterator[Iterator[Tensor]]:
    """The logits of the model's own forward, run once for each policy."""
    for layer in mixing_layers(schedule):
        passes = mixer_passes(schedule, layer)
        yield (
            model(batch.tokens, schedule=schedule, context_off=passes[number:])[:, batch.positions]
            for number in range(len(passes) + 1)
        )


def _read(
    logits: Float[Tensor, "windows positions vocab"], targets: Int[Tensor, "windows positions"]
) -> Readout:
    log_p = logits.log_softmax(-1)
    at_target = log_p.gather(-1, targets[..., None])[..., 0].double()
    root = log_p.div_(2).exp_()
    return Readout(logits, root, at_target, logits.argmax(-1))


def by_window_gram(of_layer: list[Readout]) -> Float[np.ndarray, "windows passes passes"]:
    """The Gram matrices of the increments, summed over positions in float64."""
    grams = []
    for roots in zip(*(readout.root for readout in of_layer), strict=True):
        increments = torch.stack(roots).flatten(1).diff(dim=0).double()
        grams.append(increments @ increments.T)
    return torch.stack(grams).cpu().numpy()


def _target_gains(of_layer: list[Readout]) -> Float[np.ndarray, "windows passes"]:
    gains = [(after.at_target - before.at_target).mean(-1) for before, after in pairwise(of_layer)]
    return torch.stack(gains, dim=-1).cpu().numpy()


def _top1_flips(of_layer: list[Readout]) -> Float[np.ndarray, "windows passes"]:
    flips = [(after.top != before.top).double().mean(-1) for before, after in pairwise(of_layer)]
    return torch.stack(flips, dim=-1).cpu().numpy()
