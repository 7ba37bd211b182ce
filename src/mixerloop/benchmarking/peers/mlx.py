"""mlx: `mx.fast.gated_delta_update` on its CPU device, with its gradient.

It takes the decay itself instead of its logarithm, and the state as d_value x d_key. mlx has no
option for its number of threads.
"""

from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixerloop.benchmarking.implementation import Implementation, Inputs, Prepared

ARGUMENTS = ("query", "key", "value", "log_decay", "write_strength", "initial_state")


def _prepare(inputs: Inputs, cotangents: tuple[Tensor, Tensor]) -> Prepared:
    import mlx.core as mx

    mx.set_default_device(mx.cpu)

    def array(tensor: Tensor) -> Any:
        return mx.array(tensor.contiguous().numpy())

    decay = inputs["log_decay"].exp()
    own = inputs | {"log_decay": decay, "initial_state": inputs["initial_state"].mT}
    given = [array(own[name]) for name in ARGUMENTS]
    d_output, d_state = cotangents
    seeds = [array(d_output), array(d_state.mT)]
    mx.eval(*given, *seeds)

    def forward() -> Any:
        results = mx.fast.gated_delta_update(*given)
        mx.eval(*results)
        return results

    def forward_backward() -> Any:
        results, gradients = mx.vjp(mx.fast.gated_delta_update, given, seeds)
        mx.eval(*results, *gradients)
        return gradients

    def outputs() -> tuple[Tensor, Tensor]:
        output, state = (torch.from_numpy(np.array(found)) for found in forward())
        return output, state.mT

    def gradients() -> Inputs:
        found = (torch.from_numpy(np.array(gradient)) for gradient in forward_backward())
        of = dict(zip(ARGUMENTS, found, strict=True))
        return of | {
            "log_decay": of["log_decay"] * decay,
            "initial_state": of["initial_state"].mT,
        }

    return Prepared(
        forward=forward, outputs=outputs, forward_backward=forward_backward, gradients=gradients
    )


IMPLEMENTATION = Implementation(
    name="mlx",
    is_installed=lambda: find_spec("mlx") is not None and find_spec("mlx.core") is not None,
    prepare=_prepare,
    version=partial(version, "mlx"),
)
