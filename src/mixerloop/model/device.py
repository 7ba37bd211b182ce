"""Where a model runs."""

import torch

from mixerloop.config import Device
from mixerloop.parsing import one_of


def find_device(choice: str, *, option: str) -> torch.device:
    """The chosen device; `auto` is CUDA where torch has a CUDA device, and `cuda:0` its first."""
    kind, _, number = choice.partition(":")
    if kind != "cuda" or not number.isdecimal():
        kind = one_of(Device, choice, "device")
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and int(number or 0) >= num_devices:
        devices = {0: "no CUDA device", 1: "one CUDA device"}
        there = devices.get(num_devices, f"{num_devices} CUDA devices")
        raise ValueError(f"{option} = {choice}, and torch finds {there} here")
    on_cuda = kind != "cpu" and num_devices > 0
    return torch.device(f"cuda:{number}" if number else "cuda" if on_cuda else "cpu")
