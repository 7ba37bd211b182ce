"""The loss on one device or many. The work is PyTorch's own.

DDP gives every rank all weights and shares gradients; FSDP2 shares weights and optimizer state too.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from mixerloop.config import Parallel
from mixerloop.training.loss import SummedLoss
from mixerloop.training.ranks import Ranks


class Engine:
    """The loss as this rank computes it, its gradients averaged over the ranks."""

    def __init__(self, loss: SummedLoss, *, ranks: Ranks, parallel: Parallel) -> None:
        self.module: nn.Module = loss
        if ranks.num_ranks == 1:
            loss.to(ranks.device)
        elif parallel == "fsdp":
            mesh = init_device_mesh(ranks.device.type, (ranks.num_ranks,))
            for layer in loss.model.layers:
                fully_shard(layer.mixer, mesh=mesh)  # pyright: ignore[reportCallIssue, reportArgumentType]
                fully_shard(layer.ffn, mesh=mesh)
            fully_shard(loss, mesh=mesh)
        else:
            self.module = DistributedDataParallel(
                loss.to(ranks.device), gradient_as_bucket_view=True
            )
            self._settle_buckets(ranks.device)

    def __call__(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The summed loss of these windows."""
        return self.module(tokens, labels)

    def _settle_buckets(self, device: torch.device) -> None:
        """Let DDP arrange its buckets before the first step that counts.

        It does so after the first backward of a process, and sums over three ranks or more depend
        on the arrangement; the first step after a resume would differ from the same step without.
        """
        one = torch.zeros(1, 2, dtype=torch.int64, device=device)
        for _ in range(2):
            self.module(one, one).backward()
        self.module.zero_grad()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside, nothing is kept for a backward.

        FSDP leaves the outermost weights put together until the backward; there will be none.
        """
        self.module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.module.train()
            if isinstance(self.module, FSDPModule):
                self.module.reshard()

    def sharing(self, now: bool) -> AbstractContextManager[object]:
        """Inside, gradients are averaged over the ranks now, or kept here for a later backward."""
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(now)
        elif isinstance(self.module, DistributedDataParallel) and not now:
            return self.module.no_sync()
        return nullcontext()
