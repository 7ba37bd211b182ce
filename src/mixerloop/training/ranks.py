"""One process or many: who this one is, and how it speaks with the others.

`torchrun` starts the processes and says who is who in the environment; without it there is one.
Gloo carries what they say between CPUs, NCCL between GPUs.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from mixerloop.config import Device
from mixerloop.model.device import find_device

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
    on_cuda = find_device(device, option="train.device").type == "cuda"
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
        dist.barrier()  # nobody hangs up while another still speaks
    finally:
        gc.collect()  # sharded modules hold on to their groups
        dist.destroy_process_group()


def whole(tensor: Tensor) -> Tensor:
    """A tensor of which each rank may hold a part, put together on all of them."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_parts(model: nn.Module) -> Iterator[Tensor]:
    """What this rank holds of each weight."""
    for parameter in model.parameters():
        tensor = parameter.detach()
        yield tensor.to_local() if isinstance(tensor, DTensor) else tensor
