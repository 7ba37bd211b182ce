"""Rejects a batch that the memory of this machine cannot hold, before a run is made for it."""

from mixerloop import machine
from mixerloop.config import RunConfig
from mixerloop.data.batches import PREFETCHED_BATCHES
from mixerloop.data.windows import Windows
from mixerloop.files import readable_size
from mixerloop.training.depth import Depths
from mixerloop.training.parallel import Ranks

TOKEN_BYTES = 8
RESIDUAL_BYTES = 4


def check_batch_fits(config: RunConfig, windows: Windows, *, depths: Depths, ranks: Ranks) -> None:
    """Raise if the batches that are read ahead, or the residuals of a micro-batch, are too large.

    Both are lower bounds: a batch that passes may still need more memory than there is.
    """
    free = machine.free_bytes()
    if free is None:
        return
    _, train = config.for_training()
    share = train.global_batch // ranks.num_ranks
    read_ahead = share * (windows.context + 1) * TOKEN_BYTES * PREFETCHED_BATCHES
    if read_ahead > free:
        raise ValueError(
            f"train.global_batch = {train.global_batch:,}: the batches that are read ahead need "
            f"{readable_size(read_ahead)} of memory, and {readable_size(free)} are free"
        )
    micro_batch = min(train.micro_batch or share, share)
    num_occurrences = max(len(depth.with_grad) for depth in depths.depths)
    residuals = (
        micro_batch * windows.context * config.model.d_model * num_occurrences * RESIDUAL_BYTES
    )
    if ranks.device.type == "cpu" and residuals > free:
        raise ValueError(
            f"a micro-batch of {micro_batch:,} windows: its residuals alone need "
            f"{readable_size(residuals)} of memory, and {readable_size(free)} are free; set "
            "train.micro_batch to a smaller number"
        )
