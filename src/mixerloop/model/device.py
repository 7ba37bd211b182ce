"""Where a model runs."""

import torch

from mixerloop.config import Device
from mixerloop.parsing import one_of


def find_device(choice: Device, *, option: str) -> torch.device:
    """The chosen device; `auto` is CUDA where torch has a CUDA device."""
    one_of(Device, choice, "device")
    has_cuda = torch.cuda.is_available()
    if choice == "cuda" and not has_cuda:
        raise ValueError(f"{option} = cuda, and torch finds no CUDA device here")
    return torch.device("cuda" if choice != "cpu" and has_cuda else "cpu")
