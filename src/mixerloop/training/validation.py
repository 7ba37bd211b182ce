"""The validation NLL: how training follows the held-out set, in nats per scored token.

It is the mean over the first whole held-out windows, and the value of `held_out_nll` in
metrics.jsonl. The held-out NLL of `mixerloop evaluate nll` is another number: it scores every token
of the held-out set, the last, shorter window included, and has an interval over documents.
"""

import numpy as np
import torch

from mixerloop.config import ComputeDtype
from mixerloop.data.windows import Windows
from mixerloop.ops.precision import compute_in
from mixerloop.ops.sliced_cross_entropy import NOT_SCORED
from mixerloop.training.parallel import ParallelLoss, Ranks


def validation_nll(
    summed_loss: ParallelLoss,
    windows: Windows,
    *,
    num_windows: int,
    micro_batch: int,
    compute_dtype: ComputeDtype,
    ranks: Ranks,
) -> float:
    """The mean over the first `num_windows` windows, shared among the ranks.

    Every rank runs as many forwards as the others, because under FSDP they run together; one that
    has no windows left runs the first ones again without scoring them.
    """
    num_windows = min(num_windows, windows.num_windows)
    share = -(-num_windows // ranks.num_ranks)
    mine = np.arange(share) + ranks.rank * share
    summed = scored = 0.0
    with summed_loss.evaluating():
        for at in range(0, share, micro_batch):
            indices = mine[at : at + micro_batch]
            inputs, labels = windows.read(indices % num_windows)
            labels = np.where((indices < num_windows)[:, None], labels, NOT_SCORED)
            with compute_in(compute_dtype, ranks.device.type):
                loss = summed_loss(
                    *(torch.from_numpy(x).to(ranks.device) for x in (inputs, labels))
                )
            summed += float(loss)
            scored += int((labels != NOT_SCORED).sum())
    summed, scored = ranks.total(summed, scored)
    return summed / scored
