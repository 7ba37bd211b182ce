"""The validation NLL, which training measures on the held-out set, in nats per scored token.

It is the mean over the first whole held-out windows, and is stored as `held_out_nll` in
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

    All ranks run the same number of forwards, because under FSDP a forward is collective. A rank
    without windows left reads the first windows again and does not score them.
    """
    num_windows = min(num_windows, windows.num_windows)
    share = -(-num_windows // ranks.num_ranks)
    mine = np.arange(share) + ranks.rank * share
    summed = scored = 0.0
    with summed_loss.evaluating():
        for start in range(0, share, micro_batch):
            indices = mine[start : start + micro_batch]
            inputs, labels = windows.read(indices % num_windows)
            labels = np.where((indices < num_windows)[:, None], labels, NOT_SCORED)
            with compute_in(compute_dtype, ranks.device.type):
                loss = summed_loss(
                    *(torch.from_numpy(array).to(ranks.device) for array in (inputs, labels))
                )
            summed += float(loss)
            scored += int((labels != NOT_SCORED).sum())
    summed, scored = ranks.total(summed, scored)
    return summed / scored
