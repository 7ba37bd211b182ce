import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from mixerloop.config import preset
from mixerloop.model.initialization import fresh_model
from mixerloop.model.mixers.gated_delta_net import GatedDeltaNet


@pytest.fixture(scope="module")
def nano():
    return fresh_model(preset("nano"), seed=0)


def test_matrices_are_normal_with_the_papers_spread(nano):
    for name, parameter in nano.named_parameters():
        if parameter.ndim == 2:
            spread = 5 * 0.02 / math.sqrt(2 * parameter.numel())  # five standard errors
            assert parameter.std().item() == pytest.approx(0.02, abs=spread), name
            assert abs(parameter.mean().item()) < 5 * 0.02 / math.sqrt(parameter.numel()), name


def test_norms_start_at_one_decay_rates_and_steps_in_their_ranges():
    config = preset("nano").changed(num_heads=256, d_head=1)
    for layer in fresh_model(config, seed=0).layers:
        mixer = layer.mixer
        assert isinstance(mixer, GatedDeltaNet)
        assert (layer.get_parameter("mixer_norm.weight") == 1).all()
        assert (mixer.output_norm.weight == 1).all()
        rate = mixer.A_log.exp()
        assert rate.min() > 0
        assert rate.max() <= 16
        assert rate.mean().item() == pytest.approx(8, abs=5 * 16 / math.sqrt(12 * 256))
        dt = F.softplus(mixer.dt_bias)
        assert dt.min() * 1.0001 >= 0.001
        assert dt.max() <= 0.1 * 1.0001
        assert dt.log().mean().item() == pytest.approx(math.log(0.01), abs=0.5)


@pytest.mark.parametrize(
    ("schedule", "passes", "shrunk"),
    [
        ("no_loop", 1, None),
        ("mixer_loop", 4, "mixer.output_proj.weight"),
        ("mixer_loop(2)", 2, "mixer.output_proj.weight"),
        ("full_loop", 4, "mixer.output_proj.weight"),
        ("block_loop(3)", 3, "mixer.output_proj.weight"),
        ("ffn_loop", 4, "ffn.down_proj.weight"),
    ],
)
def test_the_released_rule_shrinks_what_writes_the_repeated_part(nano, schedule, passes, shrunk):
    released = fresh_model(replace(preset("nano"), schedule=schedule), seed=0, rule="released")
    shared = dict(nano.named_parameters())
    for name, parameter in released.named_parameters():
        if shrunk is not None and name.endswith(shrunk):
            std = 0.02 / math.sqrt(2 * 4 * passes)  # nano has four layers
            assert parameter.std().item() == pytest.approx(std, rel=0.03), name
            torch.testing.assert_close(parameter, shared[name] * (std / 0.02))
        else:
            assert torch.equal(parameter, shared[name]), name


def test_seeds_and_layers_are_drawn_apart(nano):
    other = fresh_model(preset("nano"), seed=1)
    assert not torch.equal(nano.embedding.weight, other.embedding.weight)
    first, second = (nano.get_parameter(f"layers.{n}.mixer.qkv_proj.weight") for n in (0, 1))
    assert not torch.equal(first, second)


def test_drawing_weights_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    fresh_model(preset("nano"), seed=5)
    assert torch.equal(torch.rand(3), expected)


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="unknown init rule 'xavier'; known: shared, released"):
        fresh_model(preset("nano"), seed=0, rule="xavier")  # pyright: ignore[reportArgumentType]
