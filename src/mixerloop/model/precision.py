"""The type a model computes in. Weights stay float32; decays, norms and sums stay wide."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, get_args

import torch

ComputeDtype = Literal["float32", "bfloat16"]


def compute_in(dtype: ComputeDtype, device_type: str) -> AbstractContextManager[object]:
    """Projections run in this type inside the block."""
    if dtype not in get_args(ComputeDtype):
        known = ", ".join(get_args(ComputeDtype))
        raise ValueError(f"unknown compute type '{dtype}'; known: {known}")
    return torch.autocast(device_type, torch.bfloat16) if dtype == "bfloat16" else nullcontext()
