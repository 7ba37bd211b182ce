"""What one step computes: its loss in parts, its gradient, and the validation NLL.

The gradient is summed over micro-batches on a rank and averaged over the ranks. How a batch is cut
into micro-batches and ranks changes rounding only. A coupled loss, such as the balance of experts,
is no mean over tokens: where a step is computed in parts, a walk without gradients sums its
statistics over the whole step first.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mixerloop.config import ComputeDtype
from mixerloop.data.batches import Batch
from mixerloop.data.windows import Windows
from mixerloop.model.walk import NO_STATISTICS, Statistics
from mixerloop.ops.precision import compute_in
from mixerloop.ops.sliced_cross_entropy import NOT_SCORED
from mixerloop.schedule import Occurrence
from mixerloop.training.depth import Depth, Depths
from mixerloop.training.objectives.next_token import NextToken, NllOnly, StatisticsOnly
from mixerloop.training.objectives.objective import NLL, Objective
from mixerloop.training.parallel import ParallelLoss, Ranks, whole
from mixerloop.training.seeds import own_random_state

Stopped = Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class Computation:
    """What a step minimises, and how a rank computes its share of a batch."""

    micro_batch: int
    compute_dtype: ComputeDtype
    ranks: Ranks
    objective: Objective = field(default_factory=NextToken)
    depths: Depths | None = None
    """The depths of steps; by default every step trains the model's own schedule."""


class StepStopped(Exception):  # noqa: N818  (not an error)
    """A step was ended before its update, as a signal asked."""


class StepLoss(NamedTuple):
    """This rank's loss of a step."""

    summed: float
    num_scored: int
    """Scored tokens of all ranks."""
    parts: dict[str, tuple[float, float]]
    """The sum of each part of the loss, and the scored tokens it is of, on this rank."""
    has_parts: bool
    """Whether the loss is more than the NLL."""


class _Part(NamedTuple):
    """The windows of one forward and backward."""

    rows: slice | np.ndarray
    depth: Depth | None


def accumulate(
    loss: ParallelLoss,
    batch: Batch,
    computation: Computation,
    *,
    stopped: Stopped | None = None,
) -> StepLoss:
    """Add the gradient of the mean loss over the scored tokens of all ranks to the parameters.

    `stopped` is asked before each micro-batch; once it is true, `StepStopped` is raised.
    """
    ranks = computation.ranks
    is_scored = batch.labels != NOT_SCORED
    num_scored, num_tokens = map(int, ranks.total(int(is_scored.sum()), is_scored.size))
    scale = ranks.num_ranks / num_scored  # gradients are averaged over ranks; the loss is a sum
    tensors = [
        torch.from_numpy(x).to(ranks.device, non_blocking=True)
        for x in (batch.inputs, batch.labels)
    ]
    parts = list(_parts(batch, computation))
    statistics = _statistics(loss, tensors[0], parts, computation, stopped)
    summed = torch.zeros((), dtype=torch.float64, device=ranks.device)
    sums: dict[str, tuple[Tensor | float, float]] = {}
    has_parts = False
    for number, (rows, depth) in enumerate(parts):
        if stopped is not None and stopped():
            raise StepStopped
        tokens, labels = (tensor[rows] for tensor in tensors)
        with loss.sharing(now=number == len(parts) - 1):
            with compute_in(computation.compute_dtype, ranks.device.type):
                total, reported, _ = loss(
                    tokens,
                    labels,
                    objective=computation.objective,
                    depth=depth,
                    weight=num_scored * tokens.numel() / num_tokens,
                    statistics=statistics,
                )
            (total * scale).backward()
        summed += total.detach()
        scored = float(is_scored[rows].sum())
        has_parts = has_parts or reported.keys() != {NLL} or not total.equal(reported[NLL])
        for name, value in reported.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = before[0] + value.double(), before[1] + scored
    of_parts = {name: (float(total), scored) for name, (total, scored) in sums.items()}
    return StepLoss(float(summed), num_scored, of_parts, has_parts)


def _parts(batch: Batch, computation: Computation) -> Iterator[_Part]:
    """Micro-batches, in each of which all sequences have one depth."""
    size, depths, num = computation.micro_batch, computation.depths, len(batch.inputs)
    if depths is None or not depths.per_sequence:
        depth = None if depths is None else depths.depths[depths.at(batch.step)]
        for start in range(0, num, size):
            yield _Part(slice(start, start + size), depth)
        return
    first = computation.ranks.rank * num
    drawn = depths.of_sequences(batch.step)[first : first + num]
    for number in np.unique(drawn):
        (rows,) = np.nonzero(drawn == number)
        for start in range(0, len(rows), size):
            yield _Part(rows[start : start + size], depths.depths[number])


def _statistics(
    loss: ParallelLoss,
    tokens: Tensor,
    parts: list[_Part],
    computation: Computation,
    stopped: Stopped | None,
) -> Statistics:
    """The statistics of coupled losses over the whole step, if the step is computed in parts."""
    ranks = computation.ranks
    if not loss.couples_tokens or (len(parts) == 1 and ranks.num_ranks == 1):
        return NO_STATISTICS
    sums: dict[tuple[Occurrence, str], Tensor] = {}
    counts: dict[tuple[Occurrence, str], int] = defaultdict(int)
    with torch.no_grad(), own_random_state():
        for rows, depth in parts:
            if stopped is not None and stopped():
                raise StepStopped
            here = tokens[rows]
            with compute_in(computation.compute_dtype, ranks.device.type):
                walked = loss(here, here, objective=StatisticsOnly(), depth=depth)
            for key, value in walked.statistics.items():
                weighted = value.double().cpu() * here.numel()
                sums[key] = sums[key] + weighted if key in sums else weighted
                counts[key] += here.numel()
    dtype = loss.statistics_dtype
    return {
        key: (total / count).to(ranks.device, dtype)
        for key, (total, count) in ranks.summed(
            {key: (value, counts[key]) for key, value in sums.items()}
        ).items()
    }


def clip(parameters: list[nn.Parameter], largest: float) -> float:
    """Scale the gradient down to a norm of at most `largest`; returns the norm before scaling."""
    return float(whole(nn.utils.clip_grad_norm_(parameters, largest)))


def validation_nll(
    loss: ParallelLoss,
    windows: Windows,
    *,
    num_windows: int,
    computation: Computation,
    depth: Depth | None = None,
) -> float:
    """The mean NLL of the first `num_windows` whole windows of the held-out set, in nats per token.

    metrics.jsonl has it as `held_out_nll`. The held-out NLL of `mixerloop evaluate nll` is another
    number: it scores every token of the held-out set, the last, shorter window included, and has an
    interval over documents.

    All ranks run the same number of forwards, because under FSDP a forward is collective. A rank
    without windows left reads the first windows again and does not score them.
    """
    ranks, size = computation.ranks, computation.micro_batch
    num_windows = min(num_windows, windows.num_windows)
    share = -(-num_windows // ranks.num_ranks)
    mine = np.arange(share) + ranks.rank * share
    objective, summed, scored = NllOnly(), 0.0, 0.0
    with loss.evaluating():
        for start in range(0, share, size):
            indices = mine[start : start + size]
            inputs, labels = windows.read(indices % num_windows)
            labels = np.where((indices < num_windows)[:, None], labels, NOT_SCORED)
            with compute_in(computation.compute_dtype, ranks.device.type):
                tensors = (torch.from_numpy(array).to(ranks.device) for array in (inputs, labels))
                summed += float(loss(*tensors, objective=objective, depth=depth).total)
            scored += int((labels != NOT_SCORED).sum())
    summed, scored = ranks.total(summed, scored)
    return summed / scored
