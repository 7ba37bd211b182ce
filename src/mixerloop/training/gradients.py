"""The gradient of one step: micro-batches summed on a rank, averaged over the ranks, clipped."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from mixerloop.config import ComputeDtype
from mixerloop.data.batches import Batch
from mixerloop.ops.precision import compute_in
from mixerloop.ops.sliced_cross_entropy import NOT_SCORED
from mixerloop.training.parallel import ParallelLoss, Ranks, whole


@dataclass(frozen=True, kw_only=True)
class Computation:
    """How a rank computes its share of a batch; the gradient depends on it by rounding only."""

    micro_batch: int
    compute_dtype: ComputeDtype
    ranks: Ranks


class StepStopped(Exception):  # noqa: N818  (not an error)
    """A step was ended before its update, as a signal asked."""


def accumulate(
    summed_loss: ParallelLoss,
    batch: Batch,
    computation: Computation,
    *,
    stopped: Callable[[], bool] | None = None,
) -> tuple[float, int]:
    """Add the gradient of the mean loss over the scored tokens of all ranks to the parameters.

    Returns this rank's summed loss and the number of scored tokens of all ranks. `stopped` is asked
    before each micro-batch; once it is true, `StepStopped` is raised.
    """
    micro_batch, ranks = computation.micro_batch, computation.ranks
    (num_scored,) = ranks.total(int((batch.labels != NOT_SCORED).sum()))
    scale = ranks.num_ranks / num_scored  # gradients are averaged over ranks; the loss is a sum
    inputs, labels = (
        torch.from_numpy(x).to(ranks.device, non_blocking=True)
        for x in (batch.inputs, batch.labels)
    )
    summed = torch.zeros((), dtype=torch.float64, device=ranks.device)
    for start in range(0, len(inputs), micro_batch):
        if stopped is not None and stopped():
            raise StepStopped
        rows = slice(start, start + micro_batch)
        with summed_loss.sharing(now=rows.stop >= len(inputs)):
            with compute_in(computation.compute_dtype, ranks.device.type):
                loss = summed_loss(inputs[rows], labels[rows])
            (loss * scale).backward()
        summed += loss.detach()
    return float(summed), int(num_scored)


def clip(parameters: list[nn.Parameter], largest: float) -> float:
    """Scale the gradient down to a norm of at most `largest`; returns the norm before scaling."""
    return float(whole(nn.utils.clip_grad_norm_(parameters, largest)))
