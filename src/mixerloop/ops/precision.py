"""The type a model computes in. Weights stay float32; decays, norms and sums stay wide."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from mixerloop.config import ComputeDtype
from mixerloop.strict import one_of


def compute_in(dtype: ComputeDtype, device_type: str) -> AbstractContextManager[object]:
    """Projections run in this type inside the block."""
    one_of(ComputeDtype, dtype, "compute type")
    return torch.autocast(device_type, torch.bfloat16) if dtype == "bfloat16" else nullcontext()


def product_dtype(x: Tensor) -> torch.dtype:
    """The type a projection of `x` computes in: autocast's where it is on, else its own."""
    device = x.device.type
    on = torch.is_autocast_enabled(device) and x.dtype != torch.float64
    return torch.get_autocast_dtype(device) if on else x.dtype
