"""From policies to sums: each layer's trajectory at the readout, window by window."""

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
from mixerloop.ops.precision import compute_in
from mixerloop.ops.workers import map_on_cores
from mixerloop.schedule import Schedule
from mixerloop.transport.executor import shared_residuals
from mixerloop.transport.policies import Policy, intact, mixer_passes, restored
from mixerloop.transport.windows import WINDOWS_AT_ONCE, Batch, batches_of

Engine = Literal["shared", "plain"]
"""All policies from one walk, or the definition: a whole forward, head and all, for each."""

Progress = Callable[[int, int], None]
"""Told how many windows are done, of how many."""


@dataclass(frozen=True)
class Trajectories:
    """What was summed of every layer and window; passes a layer does not make are zero."""

    layers: tuple[int, ...]
    num_passes: tuple[int, ...]
    """Mixer passes of each layer."""
    gram: Float[np.ndarray, "layers windows passes passes"]
    """Of the increments, summed over positions."""
    hellinger_squared: Float[np.ndarray, "layers windows passes"]
    """Mean over positions of half the squared length of an increment."""
    target_gain: Float[np.ndarray, "layers windows passes"]
    """Mean over positions of what a pass adds to the target's log probability, in nats."""
    top1_flips: Float[np.ndarray, "layers windows passes"]
    """The share of positions where a pass changes the most likely token."""
    intact_max_abs_error: float
    """Between the logits with every pass restored and those of the unmodified model."""


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
    """Restore the passes of one layer's mixer after another; memory does not grow with windows.

    Batches of windows run on all cores; the sums are the same bit for bit on any number of them.
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
        for row, (count, found) in enumerate(zip(counts, by_layer, strict=True)):
            error = max(error, found.intact_max_abs_error)
            gram[row, here, :count, :count] = found.gram
            squares = np.diagonal(found.gram, axis1=1, axis2=2)
            effects[row, here, :count] = squares / (2 * len(windows.positions))
            gains[row, here, :count] = found.target_gains
            flips[row, here, :count] = found.top1_flips
        if progress is not None:
            progress(here.stop, len(windows.tokens))
    return Trajectories(tuple(layers), tuple(counts), gram, effects, gains, flips, error)


class _LayerSums(NamedTuple):
    """What one layer's passes do at the readout of some windows."""

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
    """The layers that run a mixer."""
    layers = sorted({one.layer for one in schedule if one.sublayer == "mixer"})
    if not layers:
        raise ValueError("this schedule runs no mixer, so there is no context to restore")
    return layers


class Readout(NamedTuple):
    """A prediction, as far as trajectories need it."""

    logits: Float[Tensor, "windows positions vocab"]
    root: Float[Tensor, "windows positions vocab"]
    """The square root of the predicted distribution."""
    at_target: Float[Tensor, "windows positions"]
    """The log probability of the token that came."""
    top: Int[Tensor, "windows positions"]
    """The most likely token."""


def readouts(
    model: LoopedLM, batch: Batch, schedule: Schedule, engine: Engine = "shared"
) -> Iterator[list[Readout]]:
    """For each layer: none of its mixer passes restored, one, and so on, all of them."""
    every = _shared_logits if engine == "shared" else _plain_logits
    whole: Readout | None = None
    for of_layer in every(model, batch, schedule):
        *earlier, last = of_layer
        if whole is None or whole.logits is not last:
            whole = _read(last, batch.targets)
        yield [*(_read(logits, batch.targets) for logits in earlier), whole]


def _shared_logits(model: LoopedLM, batch: Batch, schedule: Schedule) -> Iterator[Iterator[Tensor]]:
    """All passes restored is the model as it is, so it is read out once for all layers."""
    policies: list[list[Policy]] = [
        [
            restored(schedule, layer=layer, num_intact=number)
            for number in range(len(mixer_passes(schedule, layer)))
        ]
        for layer in mixing_layers(schedule)
    ]
    whole, found = shared_residuals(
        model,
        batch.tokens,
        batch.positions,
        [policy for of_layer in policies for policy in of_layer],
        intact=intact(schedule),
    )
    last = model.read_out(whole)
    residuals = iter(found)
    for of_layer in policies:
        yield (*(model.read_out(next(residuals)) for _ in of_layer), last)  # pyright: ignore


def _plain_logits(model: LoopedLM, batch: Batch, schedule: Schedule) -> Iterator[Iterator[Tensor]]:
    """The model's own forward with some occurrences context-off, once per policy."""
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
    """Of the increments, summed over positions in float64."""
    found = []
    for roots in zip(*(one.root for one in of_layer), strict=True):
        steps = torch.stack(roots).flatten(1).diff(dim=0).double()
        found.append(steps @ steps.T)
    return torch.stack(found).cpu().numpy()


def _target_gains(of_layer: list[Readout]) -> Float[np.ndarray, "windows passes"]:
    gains = [(after.at_target - before.at_target).mean(-1) for before, after in pairwise(of_layer)]
    return torch.stack(gains, dim=-1).cpu().numpy()


def _top1_flips(of_layer: list[Readout]) -> Float[np.ndarray, "windows passes"]:
    flips = [(after.top != before.top).double().mean(-1) for before, after in pairwise(of_layer)]
    return torch.stack(flips, dim=-1).cpu().numpy()
