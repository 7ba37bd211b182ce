"""Random numbers of training: each step seeds its own, and the caller's stay as they were."""

import hashlib
from contextlib import AbstractContextManager

import torch


def own_random_state() -> AbstractContextManager[None]:
    """Give torch's global random numbers, which every step seeds, back as they were."""
    on_gpus = torch.cuda.is_initialized()
    return torch.random.fork_rng(range(torch.cuda.device_count()) if on_gpus else ())


def step_seed(seed: int, step: int, rank: int) -> int:
    """Random seed of one step on one rank, so that its draws do not depend on earlier steps."""
    digest = hashlib.sha256(f"step/{seed}/{step}/{rank}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1
