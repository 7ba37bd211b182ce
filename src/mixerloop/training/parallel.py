"""One process or many: the ranks of a run, and the loss that they compute together.

`torchrun` starts the processes and gives each its rank in the environment; without it there is one
process. Gloo carries messages between CPUs, NCCL between GPUs. DDP gives every rank all weights and
averages gradients; FSDP2 also shards weights and optimizer state.
"""

import gc
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
from mixerloop.model.device import find_device
from mixerloop.training.loss import SummedLoss

T = TypeVar("T")
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The rank of this process, and how ranks exchange values."""

    rank: int = 0
    num_ranks: int = 1
    device: torch.device = CPU

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    @property
    def is_first_of_machine(self) -> bool:
        """Whether no other rank on this machine checks the machine's copy of the data."""
        return self.num_ranks == 1 or _count("LOCAL_RANK", "0") == 0

    def total(self, *values: float) -> list[float]:
        """Each value, summed over the ranks."""
        if self.num_ranks == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return sums.tolist()

    def from_first(self, value: T) -> T:
        """The value of the first rank, on every rank."""
        if self.num_ranks == 1:
            return value
        holder = [value]
        dist.broadcast_object_list(holder, src=0, device=self.device)
        return holder[0]

    def wait(self) -> None:
        """Wait until every rank has called this."""
        if self.num_ranks > 1:
            dist.barrier()


def _count(name: str, otherwise: str) -> int:
    text = os.environ.get(name, otherwise)
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"the environment has {name} = {text!r}, which torchrun sets to a number")
    return int(text)


@contextmanager
def joined(device: Device) -> Iterator[Ranks]:
    """Join the process group that `torchrun` has started; without it, a single rank."""
    num_ranks = _count("WORLD_SIZE", "1")
    on_cuda = find_device(device, option="train.device").type == "cuda"
    local_rank = _count("LOCAL_RANK", "0")
    where = torch.device("cuda", local_rank) if on_cuda else CPU
    if on_cuda:
        torch.cuda.set_device(where)
    if num_ranks == 1:
        yield Ranks(device=where)
        return
    dist.init_process_group("nccl" if on_cuda else "gloo")
    try:
        yield Ranks(rank=dist.get_rank(), num_ranks=num_ranks, device=where)
        dist.barrier()  # all ranks wait before the process group is destroyed
    finally:
        gc.collect()  # sharded modules hold on to their groups
        dist.destroy_process_group()


def whole(tensor: Tensor) -> Tensor:
    """The full tensor on every rank; the shards of a DTensor are gathered."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_parts(model: nn.Module) -> Iterator[Tensor]:
    """This rank's shard of each weight."""
    for parameter in model.parameters():
        tensor = parameter.detach()
        yield tensor.to_local() if isinstance(tensor, DTensor) else tensor


class ParallelLoss:
    """The loss of this rank's windows; its gradients are averaged over the ranks."""

    def __init__(self, loss: SummedLoss, *, ranks: Ranks, parallel: Parallel) -> None:
        self.module: nn.Module = loss
        may_skip = any(
            sublayer.may_skip_weights
            for layer in loss.model.layers
            for sublayer in (layer.mixer, layer.ffn)
        )
        if ranks.num_ranks == 1:
            loss.to(ranks.device)
        elif parallel == "fsdp":
            if (
                may_skip
            ):  # FSDP2 reduces the gradients that a rank has, whichever weights they are of
                raise ValueError(
                    "train.parallel = fsdp: a sublayer of this model may leave weights without a "
                    "gradient, which FSDP2 would mix up between ranks; use ddp"
                )
            mesh = init_device_mesh(ranks.device.type, (ranks.num_ranks,))
            for layer in loss.model.layers:
                fully_shard(layer.mixer, mesh=mesh)
                fully_shard(layer.ffn, mesh=mesh)
            fully_shard(loss, mesh=mesh)
        else:
            self.module = DistributedDataParallel(
                loss.to(ranks.device),
                gradient_as_bucket_view=True,
                find_unused_parameters=may_skip,
            )
            self._settle_buckets(ranks.device)

    def __call__(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The summed loss of these windows."""
        return self.module(tokens, labels)

    def _settle_buckets(self, device: torch.device) -> None:
        """Let DDP arrange its buckets before the first training step.

        DDP arranges them after the first backward of a process, and sums over three ranks or more
        depend on the arrangement. Without this, the first step after a resume would differ from
        the same step of a run that was never stopped.
        """
        tokens = torch.zeros(1, 2, dtype=torch.int64, device=device)
        for _ in range(2):
            self.module(tokens, tokens).backward()
        self.module.zero_grad()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Compute in evaluation mode and without gradients inside the block.

        FSDP keeps the outermost weights gathered until a backward. The block has no backward, so
        the weights are sharded again at its end.
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
        """In the block, a backward averages gradients over the ranks if `now`, else only adds."""
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(now)
        elif isinstance(self.module, DistributedDataParallel) and not now:
            return self.module.no_sync()
        return nullcontext()
