from dataclasses import replace

import pytest
import torch

from mixerloop.config import preset
from mixerloop.model.accounting import account_model, account_schedule
from mixerloop.model.initialization import fresh_model
from mixerloop.schedule import LOOPS


def accounts(size):
    config = preset(size)
    model = account_model(config)
    return model, {
        name: account_schedule(model, loop(config.num_layers, 4), num_layers=config.num_layers)
        for name, loop in LOOPS.items()
    }


@pytest.mark.parametrize(
    ("size", "parameters", "ffn_share", "ratio", "saving"),
    [("15m", 15_724_416, 0.612, 0.5409, 0.339), ("110m", 116_940_576, 0.613, 0.5401, 0.431)],
)
def test_the_papers_figures_come_out(size, parameters, ffn_share, ratio, saving):
    model, by_loop = accounts(size)
    assert model.parameters == parameters
    assert round(model.ffn_share, 3) == ffn_share
    assert round(by_loop["mixer_loop"].backbone_ratio_to_full_loop, 4) == ratio
    assert round(by_loop["mixer_loop"].saving_to_full_loop, 3) == saving


@pytest.mark.parametrize("size", ["nano", "110m"])
def test_counting_modules_agrees_with_the_formulas(size):
    config = preset(size)
    model, by_loop = accounts(size)
    w, f = config.d_model, config.options["swiglu"].d_ffn
    h = config.options["gated_delta_net"].num_heads
    c_mixer, c_ffn, c_head = 5 * w * w + 2 * w * h + 12 * w, 3 * w * f, config.vocab_size * w
    assert model.mixer.projection_macs == c_mixer
    assert model.ffn.projection_macs == c_ffn
    layers = config.num_layers
    expected = {
        "no_loop": layers * (c_mixer + c_ffn) + c_head,
        "mixer_loop": layers * (4 * c_mixer + c_ffn) + c_head,
        "ffn_loop": layers * (c_mixer + 4 * c_ffn) + c_head,
        "block_loop": 4 * layers * (c_mixer + c_ffn) + c_head,
        "full_loop": 4 * layers * (c_mixer + c_ffn) + c_head,
    }
    assert {n: a.projection_macs_per_token for n, a in by_loop.items()} == expected


def test_only_weights_that_are_not_multiplied_are_left_out_of_the_count(tiny):
    model = account_model(tiny)
    per_layer = model.mixer.projection_macs + model.ffn.projection_macs
    mixer = tiny.options["gated_delta_net"]
    norms_and_decay = 2 * tiny.d_model + mixer.d_head + 2 * mixer.num_heads
    assert model.parameters == (
        tiny.num_layers * (per_layer + norms_and_decay) + model.head_macs_per_token + tiny.d_model
    )


@pytest.mark.parametrize("name", LOOPS)
def test_activation_bytes_are_those_autograd_keeps_for_a_whole_walk(tiny, name):
    config = replace(tiny, schedule=name)
    model = fresh_model(config, seed=0, form="torch")
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    residual = torch.randn(2, 512, tiny.d_model, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.walk(residual, model.schedule)
    held = sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in weights)
    account = account_schedule(account_model(config), model.schedule, num_layers=3)
    assert account.activation_bytes_per_token == pytest.approx(held / 1024, rel=0.02)
