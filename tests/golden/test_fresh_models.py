"""Values that must not move: a change here is a change of every result that carries a seed."""

import hashlib
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from mixerloop.config import preset
from mixerloop.model.initialization import fresh_model

WEIGHTS = {
    "shared": "bada4df3c7591e78dac4d8c96dd2a915c6a6d3fc5f6dfb0d46c0bad34dcb520e",
    "released": "a85dc5a58b95e6cc89843d20fed59d219e20965fbd7b2696d747bd1ce7e1535c",
}
LOSSES = {  # float64
    "no_loop": 8.401726339156527,
    "mixer_loop": 8.389757080334364,
    "ffn_loop": 8.373666720356994,
    "block_loop": 8.380310182149136,
    "full_loop": 8.371374691018996,
}


@pytest.mark.parametrize("rule", WEIGHTS)
def test_a_seed_always_draws_the_same_bits(rule):
    digest = hashlib.sha256()
    model = fresh_model(preset("nano"), seed=1337, rule=rule)
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().numpy().tobytes())
    assert digest.hexdigest() == WEIGHTS[rule]


@pytest.mark.parametrize("loop", LOSSES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_a_fresh_model_always_has_the_same_loss(loop, dtype, tolerance):
    model = fresh_model(replace(preset("nano"), schedule=loop), seed=1337).to(dtype)
    tokens = torch.arange(100)[None] * 37 % 4096
    loss = F.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:])
    assert loss.item() == pytest.approx(LOSSES[loop], abs=tolerance)
