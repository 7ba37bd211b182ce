"""From policies to sums: each layer's trajectory at the readout, window by window."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mixerloop.config import ComputeDtype
from mixerloop.model.looped_lm import LoopedLM
from mixerloop.ops.precision import compute_in
from mixerloop.schedule import Schedule
from mixerloop.transport.executor import plain_residuals, shared_residuals
from mixerloop.transport.policies import Policy, mixer_passes, native, restored

Engine = Literal["shared", "plain"]
WINDOWS_AT_ONCE = 16

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
    native_max_abs_error: float
    """Between the logits with every pass restored and those of the unmodified model."""


@dataclass(frozen=True)
class Windows:
    """What is read: tokens, where the readout is looked at, and what comes next there."""

    tokens: Int[np.ndarray, "windows context"]
    positions: Int[np.ndarray, " positions"]

    @property
    def targets(self) -> Int[np.ndarray, "windows positions"]:
        """The token after each position."""
        return self.tokens[:, self.positions + 1]


def spread_positions(context: int, num: int) -> Int[np.ndarray, " positions"]:
    """Evenly spaced in the second half; the last one still has a next token in the window."""
    first, last = context // 2, context - 2
    if num < 1 or last - first + 1 < num:
        most = max(0, last - first + 1)
        raise ValueError(f"a context of {context} tokens has room for {most} positions, not {num}")
    return np.unique(np.linspace(first, last, num).round().astype(np.int64))


@torch.inference_mode()
def measure(
    model: LoopedLM,
    windows: Windows,
    *,
    schedule: Schedule | None = None,
    compute_dtype: ComputeDtype = "float32",
    engine: Engine = "shared",
    progress: Progress | None = None,
) -> Trajectories:
    """Restore the passes of one layer's mixer after another; memory does not grow with windows."""
    schedule = model.schedule if schedule is None else schedule
    by_layer = layer_policies(schedule)
    layers, policies = list(by_layer), list(by_layer.values())
    counts = [len(of_layer) for of_layer in policies]
    shape = (len(layers), len(windows.tokens), max(counts))
    gram = np.zeros((*shape, max(counts)))
    effects, gains, flips = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    device = model.embedding.weight.device
    positions = torch.from_numpy(windows.positions).to(device)
    error = 0.0
    for here in parts(len(windows.tokens)):
        tokens = torch.from_numpy(windows.tokens[here]).to(device)
        targets = torch.from_numpy(windows.targets[here]).to(device)
        with compute_in(compute_dtype, device.type):
            unmodified = model(tokens, positions=positions, schedule=schedule)
            readouts = layer_readouts(model, tokens, positions, policies, schedule, engine)
            for row, logits in enumerate(readouts):
                error = max(error, float((logits[-1] - unmodified).abs().max()))
                count = len(policies[row])
                sums = _of_layer(logits, targets)
                gram[row, here, :count, :count] = sums.gram
                effects[row, here, :count] = sums.effects
                gains[row, here, :count] = sums.gains
                flips[row, here, :count] = sums.flips
        if progress is not None:
            progress(here.stop, len(windows.tokens))
    return Trajectories(tuple(layers), tuple(counts), gram, effects, gains, flips, error)


def layer_policies(schedule: Schedule) -> dict[int, list[Policy]]:
    """For each layer with a mixer: none of its passes restored, one, and so on, all but the last.

    All of them restored is the model as it is.
    """
    layers = sorted({one.layer for one in schedule if one.sublayer == "mixer"})
    if not layers:
        raise ValueError("this schedule runs no mixer, so there is no context to restore")
    return {
        layer: [
            restored(schedule, layer=layer, num_native=number)
            for number in range(len(mixer_passes(schedule, layer)))
        ]
        for layer in layers
    }


def parts(num_windows: int) -> Iterator[slice]:
    """The windows that run together."""
    for start in range(0, num_windows, WINDOWS_AT_ONCE):
        yield slice(start, min(start + WINDOWS_AT_ONCE, num_windows))


def layer_readouts(
    model: LoopedLM,
    tokens: Int[Tensor, "windows context"],
    positions: Int[Tensor, " positions"],
    policies: Sequence[Sequence[Policy]],
    schedule: Schedule,
    engine: Engine,
) -> Iterator[Float[Tensor, "policies windows positions vocab"]]:
    """The logits of each layer's policies, and last those of the model as it is."""
    flat = [policy for of_layer in policies for policy in of_layer]
    if engine == "shared":
        whole, found = shared_residuals(model, tokens, positions, flat, native=native(schedule))
    else:
        whole, *found = plain_residuals(model, tokens, positions, [native(schedule), *flat])
    logits = model.read_out(whole)
    residuals = iter(found)
    for of_layer in policies:
        yield torch.stack([*(model.read_out(next(residuals)) for _ in of_layer), logits])


def increments(
    log_p: Float[Tensor, "policies windows positions vocab"],
) -> Float[Tensor, "passes windows positions vocab"]:
    """What each pass changes of the square root of the predicted distribution."""
    return (log_p / 2).exp_().diff(dim=0).double()


@dataclass(frozen=True)
class _LayerSums:
    gram: np.ndarray
    effects: np.ndarray
    gains: np.ndarray
    flips: np.ndarray


def _of_layer(
    logits: Float[Tensor, "policies windows positions vocab"],
    targets: Int[Tensor, "windows positions"],
) -> _LayerSums:
    log_p = logits.log_softmax(-1)
    by_window = increments(log_p).transpose(0, 1).flatten(2)
    gram = by_window @ by_window.transpose(1, 2)
    at_target = log_p.gather(-1, targets.expand(len(logits), -1, -1)[..., None])[..., 0].double()
    num_positions = targets.shape[1]
    squares = torch.diagonal(gram, dim1=1, dim2=2)
    top = logits.argmax(-1)
    return _LayerSums(
        gram=gram.cpu().numpy(),
        effects=(squares / (2 * num_positions)).cpu().numpy(),
        gains=at_target.diff(dim=0).mean(-1).T.cpu().numpy(),
        flips=(top[1:] != top[:-1]).double().mean(-1).T.cpu().numpy(),
    )
