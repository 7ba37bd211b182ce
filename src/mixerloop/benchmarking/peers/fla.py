"""fla-core: the plain torch functions that it tests its kernels against."""

import warnings
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec

from torch import Tensor

from mixerloop.benchmarking.implementation import (
    Implementation,
    Inputs,
    Prepared,
    decay_of,
    with_autograd,
)

CHUNK = 64
LARGEST_EXPONENT = 88  # of a float32


def _limit(inputs: Inputs) -> str | None:
    """With a decay per channel whole chunks only, and decays whose inverses do not overflow."""
    seq = inputs["key"].shape[1]
    if decay_of(inputs) == "head" or seq == 1:
        return None
    if seq % CHUNK:
        return f"takes multiples of {CHUNK} tokens with a decay per channel"
    chunks = inputs["log_decay"].unflatten(1, (-1, CHUNK)).sum(dim=2)
    return "overflows with decays as strong" if chunks.min() < -LARGEST_EXPONENT else None


def _prepare(inputs: Inputs, cotangents: tuple[Tensor, Tensor]) -> Prepared:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fla.ops.gated_delta_rule import naive as gated_delta_rule
        from fla.ops.kda import naive as kda

    chunked, single = {
        "head": (
            gated_delta_rule.naive_chunk_gated_delta_rule,
            gated_delta_rule.naive_recurrent_gated_delta_rule,
        ),
        "channel": (kda.naive_chunk_kda, kda.naive_recurrent_kda),
    }[decay_of(inputs)]
    rule = single if inputs["key"].shape[1] == 1 else chunked

    def run(given: Inputs) -> tuple[Tensor, Tensor]:
        output, state = rule(
            given["query"],
            given["key"],
            given["value"],
            g=given["log_decay"],
            beta=given["write_strength"],
            scale=1.0,
            initial_state=given["initial_state"],
            output_final_state=True,
        )
        assert state is not None
        return output, state

    return with_autograd(run, inputs, cotangents)


IMPLEMENTATION = Implementation(
    name="fla_naive",
    is_installed=lambda: find_spec("fla") is not None,
    prepare=_prepare,
    version=partial(version, "fla-core"),
    decays=("head", "channel"),
    limit=_limit,
)
