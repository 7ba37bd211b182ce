"""One process or many: the ranks of a run, and the loss that they compute together.

`torchrun` starts the processes and gives each its rank in the environment; without it there is one
process. Gloo carries messages between CPUs, NCCL between GPUs. DDP gives every rank all weights and
averages gradients; FSDP2 also shards weights and optimizer state.
"""

import gc
import os
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from mixerloop.config import Device, Parallel
from mixerloop.model.device import find_device
from mixerloop.training.loss import Loss
from mixerloop.training.objectives.objective import Parts

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
CPU = torch.device("cpu")
NOTHING: Mapping[str, Any] = {}


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

    def of_first(self, value: float) -> float:
        """The first rank's number, on every rank."""
        return sum(self.total(value if self.is_first else 0.0))

    def summed(self, values: Mapping[K, tuple[T, float]]) -> dict[K, tuple[T, float]]:
        """Pairs by key, each summed over the ranks that have the key, in the order of ranks."""
        if self.num_ranks == 1:
            return dict(values)
        of_ranks: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(of_ranks, dict(values))
        sums: dict[K, tuple[Any, float]] = {}
        for of_rank in of_ranks:
            for key, (value, count) in of_rank.items():
                before = sums.get(key, (0.0, 0.0))
                sums[key] = before[0] + value, before[1] + count
        return sums

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


class ParallelLoss:
    """The loss of this rank's windows; its gradients are averaged over the ranks.

    `may_skip` says that a step may leave weights without a gradient, and `settle` how a step calls
    the loss (`Loss.forward`).
    """

    def __init__(
        self,
        loss: Loss,
        *,
        ranks: Ranks,
        parallel: Parallel,
        may_skip: bool = False,
        settle: Mapping[str, Any] = NOTHING,
    ) -> None:
        self.module: nn.Module = loss
        self._model, self._ranks = loss.model, ranks
        sublayers = [one for layer in loss.model.layers for one in (layer.mixer, layer.ffn)]
        self.couples_tokens = any(sublayer.couples_tokens for sublayer in sublayers)
        """Whether the model has losses whose statistics are of all tokens of a step."""
        self.statistics_dtype = loss.model.dtype
        """The type of these statistics."""
        may_skip = may_skip or any(sublayer.may_skip_weights for sublayer in sublayers)
        if ranks.num_ranks == 1:
            loss.to(ranks.device)
        elif parallel == "fsdp":
            if may_skip:  # FSDP2 reduces what gradients a rank has, whichever weights they are of
                raise ValueError(
                    "train.parallel = fsdp: a step of this model may leave weights without a "
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
            self._settle_buckets(ranks.device, settle)

    def __call__(self, tokens: Tensor, labels: Tensor, **how: Any) -> Parts:
        """The loss of these windows; the keywords are those of `Loss.forward`."""
        return self.module(tokens, labels, **how)

    def weights_are_finite(self) -> bool:
        """Whether all weights of all ranks are finite."""
        weights = (parameter.detach() for parameter in self._model.parameters())
        shards = (
            weight.to_local() if isinstance(weight, DTensor) else weight for weight in weights
        )
        finite = all(bool(shard.isfinite().all()) for shard in shards)
        (num_bad,) = self._ranks.total(0 if finite else 1)
        return not num_bad

    def _settle_buckets(self, device: torch.device, how: Mapping[str, Any]) -> None:
        """Let DDP arrange its buckets before the first training step.

        DDP arranges them after the first backward of a process, and sums over three ranks or more
        depend on the arrangement. Without this, the first step after a resume would differ from
        the same step of a run that was never stopped.
        """
        tokens = torch.zeros(1, 2, dtype=torch.int64, device=device)
        for _ in range(2):
            self(tokens, tokens, **how).total.backward()
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
