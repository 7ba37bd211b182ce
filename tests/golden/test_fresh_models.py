"""Values that must not move: a change here is a change of every result that carries a seed."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from mixerloop.config import preset
from mixerloop.model.initialization import fresh_model
from mixerloop.ops import native_library

WEIGHTS = {
    "shared": "1b848afb2dd016c6dbbdd4bb5b60b5f949e618bac21304e08977a7a3db852dbb",
    "released": "dcef7eda08d4fc26e7a6104f504f53f7b80e5fb806e3034a3775a8f37801f57d",
}
LOSSES = {  # float64
    "no_loop": 8.352682486519623,
    "mixer_loop": 8.35978107728576,
    "ffn_loop": 8.35004560098933,
    "block_loop": 8.354492299315998,
    "full_loop": 8.361243305672028,
}
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5}
"""How far another order of summation moves a loss."""
LIMITS = {  # of torch, of numpy and of our kernels
    "default": ("default", "X86_V3 X86_V4 AVX512_ICL", "portable"),
    "avx2": ("avx2", "X86_V4 AVX512_ICL", "avx2"),
    "avx512": ("avx512", "", "avx512"),
}


def digest_of(rule):
    digest = hashlib.sha256()
    model = fresh_model(preset("nano"), seed=1337, rule=rule)
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def loss_of(loop, dtype):
    model = fresh_model(replace(preset("nano"), schedule=loop), seed=1337).to(dtype)
    tokens = torch.arange(100)[None] * 37 % 4096
    return F.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:]).item()


@pytest.mark.parametrize("rule", WEIGHTS)
def test_a_seed_always_draws_the_same_bits(rule):
    assert digest_of(rule) == WEIGHTS[rule]


@pytest.mark.parametrize("loop", LOSSES)
@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_fresh_model_always_has_the_same_loss(loop, dtype):
    assert loss_of(loop, dtype) == pytest.approx(LOSSES[loop], abs=ROUNDING[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("capability", LIMITS)
def test_weights_and_losses_do_not_depend_on_the_instruction_set(capability):
    """Torch and numpy lower a set that the CPU does not have to the best it has."""
    aten, numpy_without, kernel = LIMITS[capability]
    limits = {"ATEN_CPU_CAPABILITY": aten, "NPY_DISABLE_CPU_FEATURES": numpy_without}
    loaded = native_library.library()
    best = 0 if loaded is None else loaded.mixerloop_best_set()
    if kernel in native_library.INSTRUCTION_SETS[: best + 1]:
        limits[native_library.SET_VARIABLE] = kernel
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", __file__],
        env=os.environ | limits,
        capture_output=True,
        text=True,
        check=True,
    )
    digests, losses = json.loads(ended.stdout)
    assert digests == WEIGHTS
    assert losses == pytest.approx(LOSSES, abs=ROUNDING[torch.float64])


if __name__ == "__main__":  # what the test above runs under other instruction sets
    digests = {rule: digest_of(rule) for rule in WEIGHTS}
    print(json.dumps([digests, {loop: loss_of(loop, torch.float64) for loop in LOSSES}]))
