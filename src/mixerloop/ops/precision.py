"""The type a model computes in. Weights stay float32; decays, norms and sums stay wide."""

import time
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import numpy as np
import torch
from torch import Tensor

from mixerloop.config import ComputeDtype, ComputeDtypeChoice
from mixerloop.parsing import one_of

WORTHWHILE = 1.2
"""How much faster a product in bfloat16 must be than in float32 for its coarser rounding."""
PROBE_SIZE, PROBE_ROUNDS = 384, 5


def choose_compute_dtype(choice: ComputeDtypeChoice, device_type: str) -> ComputeDtype:
    """The named type; for `auto` the fastest type on this device."""
    one_of(ComputeDtypeChoice, choice, "compute type")
    if choice != "auto":
        return choice
    return "bfloat16" if bfloat16_speedup(device_type) > WORTHWHILE else "float32"


@cache
def bfloat16_speedup(device_type: str) -> float:
    """How many times as fast this device multiplies matrices in bfloat16 as in float32.

    A CPU without bfloat16 instructions emulates bfloat16 at a fraction of the speed of float32. The
    best of several rounds in turn counts, so that a busy neighbour does not decide.
    """
    if device_type == "cuda":
        return 2.0 if torch.cuda.is_bf16_supported(including_emulation=False) else 0.0
    best: dict[torch.dtype, float] = {}
    for _ in range(PROBE_ROUNDS):
        for dtype in (torch.float32, torch.bfloat16):
            square = torch.ones(PROBE_SIZE, PROBE_SIZE, dtype=dtype)
            began = time.perf_counter()
            torch.mm(square, square)
            best[dtype] = min(best.get(dtype, float("inf")), time.perf_counter() - began)
    return best[torch.float32] / best[torch.bfloat16]


def compute_in(dtype: ComputeDtype, device_type: str) -> AbstractContextManager[object]:
    """Projections run in this type inside the block."""
    one_of(ComputeDtype, dtype, "compute type")
    return torch.autocast(device_type, torch.bfloat16) if dtype == "bfloat16" else nullcontext()


def check_finite(*numbers: Tensor | np.ndarray, what: str) -> None:
    """Raise FloatingPointError, which ends a command with exit code 1, unless all are finite."""
    if not all(bool(torch.as_tensor(part).isfinite().all()) for part in numbers):
        raise FloatingPointError(f"the {what} are not finite; are the weights?")


def product_dtype(x: Tensor) -> torch.dtype:
    """The type in which `x` is projected: the autocast type under autocast, else its own."""
    device = x.device.type
    on = torch.is_autocast_enabled(device) and x.dtype != torch.float64
    return torch.get_autocast_dtype(device) if on else x.dtype
