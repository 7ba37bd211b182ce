"""transformers: the torch functions that its Qwen3-Next and Kimi-Linear run without a GPU.

Both models have one function for many tokens and another for a single token. All scale the query.
"""

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from mixerloop.benchmarking.implementation import (
    Implementation,
    Inputs,
    Prepared,
    decay_of,
    with_autograd,
)


def _prepare(inputs: Inputs, cotangents: tuple[Tensor, Tensor]) -> Prepared:
    rule = _function(inputs)

    def run(given: Inputs) -> tuple[Tensor, Tensor]:
        return rule(
            given["query"],
            given["key"],
            given["value"],
            g=given["log_decay"],
            beta=given["write_strength"],
            initial_state=given["initial_state"],
            output_final_state=True,
            use_qk_l2norm_in_kernel=False,
        )

    return with_autograd(run, inputs, cotangents, query_scale=inputs["key"].shape[-1] ** 0.5)


def _function(inputs: Inputs) -> Callable[..., Any]:
    with warnings.catch_warnings():  # transformers imports fla, which warns if there is no GPU
        warnings.simplefilter("ignore")
        from transformers.models.kimi_linear import modeling_kimi_linear as kimi
        from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    chunked, single = {
        "head": (qwen.torch_chunk_gated_delta_rule, qwen.torch_recurrent_gated_delta_rule),
        "channel": (kimi.chunk_kimi_delta_attention, kimi.recurrent_kimi_delta_attention),
    }[decay_of(inputs)]
    return inspect.unwrap(single if inputs["key"].shape[1] == 1 else chunked)


IMPLEMENTATION = Implementation(
    name="transformers",
    is_installed=lambda: find_spec("transformers") is not None,
    prepare=_prepare,
    version=partial(version, "transformers"),
    decays=("head", "channel"),
)
