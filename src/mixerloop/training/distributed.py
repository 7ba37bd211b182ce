"""One process or many: who this one is, and what it shares with the others.

`torchrun` starts the processes and says who is who in the environment; without it there is one. The
work is PyTorch's own: DDP shares gradients, FSDP2 weights and optimizer state as well; gloo carries
them between CPUs, NCCL between GPUs.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from mixerloop.config import Device, Parallel
from mixerloop.training.loss import SummedLoss

T = TypeVar("T")
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among the others."""

    rank: int = 0
    num_ranks: int = 1
    device: torch.device = CPU

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def total(self, *values: float) -> list[float]:
        """Each value, summed over the ranks."""
        if self.num_ranks == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return sums.tolist()

    def from_first(self, value: T) -> T:
        """What the first rank has."""
        if self.num_ranks == 1:
            return value
        holder = [value]
        dist.broadcast_object_list(holder, src=0, device=self.device)
        return holder[0]

    def wait(self) -> None:
        """Go on when all have come here."""
        if self.num_ranks > 1:
            dist.barrier()


@contextmanager
def joined(device: Device) -> Iterator[Ranks]:
    """Join the processes `torchrun` has started, or be the only one."""
    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("train.device = cuda, and torch finds no CUDA device here")
    on_cuda = device != "cpu" and torch.cuda.is_available()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    where = torch.device("cuda", local_rank) if on_cuda else CPU
    if on_cuda:
        torch.cuda.set_device(where)
    if num_ranks == 1:
        yield Ranks(device=where)
        return
    dist.init_process_group("nccl" if on_cuda else "gloo")
    try:
        yield Ranks(rank=dist.get_rank(), num_ranks=num_ranks, device=where)
    finally:
        dist.destroy_process_group()


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

    def __call__(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The summed loss of these windows."""
        return self.module(tokens, labels)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside, nothing is kept for a backward.

        FSDP leaves the outermost weights put together until the backward; there will be none.
        """
        self.module.eval()
        with torch.no_grad():
            yield
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


def whole(tensor: Tensor) -> Tensor:
    """A tensor of which each rank may hold a part, put together on all of them."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
