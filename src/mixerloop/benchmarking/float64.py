"""Run other people's code in float64 although it casts to float32, for a reference of gradients."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class InFloat64(TorchFunctionMode):
    """Inside `with InFloat64():` a cast to float32 gives float64; tensors must come as float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        named = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(_wide, args), **named)


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
