"""`train.freeze`: some parameters keep their bits, and the others are trained without them."""

import pytest
import torch
from safetensors.torch import load_file

from mixerloop import runs
from mixerloop.model.initialization import fresh_model, meta_model
from mixerloop.training.depth import Depth
from mixerloop.training.display import show_training
from mixerloop.training.freezing import frozen_names, num_trained, train_only, trained_weights
from mixerloop.training.run_setup import begin, resumed_config
from mixerloop.training.sessions import train
from mixerloop.training.step import accumulate
from small_model import SMALL, small_config
from training_sessions import (
    assert_same_run,
    begun,
    contents,
    go,
    records,
    twelve_steps,
    weights,
    with_train,
)

FROZEN = ("embedding.*", "layers.0.*")


@pytest.fixture(scope="module")
def config(hops_data):
    return twelve_steps(hops_data, small_config(**SMALL, schedule="mixer_loop(2)"))


def is_frozen(name):
    return name.startswith(("embedding.", "layers.0."))


@pytest.mark.parametrize(
    "how",
    [{"recompute": True, "micro_batch": 2}, {"form": "native", "weight_decay": 0.5}],
    ids="-".join,
)
def test_frozen_parameters_keep_their_bits_and_the_others_change(tmp_path, config, how):
    go(tmp_path / "run", with_train(config, freeze=FROZEN, **how), until=2)
    before = fresh_model(config.model, seed=config.train.seed, form="torch").state_dict()
    trained = weights(tmp_path / "run", 2)
    assert any(map(is_frozen, before))
    for name, tensor in before.items():
        assert torch.equal(trained[name], tensor) == is_frozen(name), name
    folder = runs.checkpoint_folder(tmp_path / "run", 2)
    moments = load_file(folder / "optimizer/optimizer.safetensors")
    assert not any(is_frozen(name.partition(".")[2]) for name in moments)


@pytest.mark.parametrize("decays", [True, False])
def test_the_optimizer_may_have_nothing_that_decays_or_nothing_else(tmp_path, config, decays):
    parameters = meta_model(config.model).named_parameters()
    freeze = tuple(name for name, parameter in parameters if (parameter.ndim >= 2) != decays)
    assert go(tmp_path / "run", with_train(config, freeze=freeze), until=1).step == 1


def test_the_gradient_and_its_norm_are_of_the_trained_parameters(tmp_path, config):
    gradients, norms, losses = {}, {}, {}
    for freeze in ((), FROZEN):
        run, changed = tmp_path / f"{len(freeze)}-frozen", with_train(config, freeze=freeze)
        go(run, changed, until=1)
        (line,) = records(run / "metrics.jsonl")
        norms[freeze], losses[freeze] = line["grad_norm"], line["loss"]
        gradients[freeze] = first_gradient(tmp_path / f"{run.name}-again", changed)
    assert losses[()] == losses[FROZEN]
    assert {name for name, gradient in gradients[FROZEN].items() if gradient is None} == {
        name for name in gradients[()] if is_frozen(name)
    }
    trained = [gradients[()][name] for name in gradients[()] if not is_frozen(name)]
    norm = float(torch.cat([gradient.flatten() for gradient in trained]).norm())
    assert norms[FROZEN] == pytest.approx(norm, rel=1e-5)
    assert norms[FROZEN] < 0.99 * norms[()]


def first_gradient(run, config):
    trainer = begun(run, config)
    accumulate(trainer.loss, trainer.batches.read(0), trainer.computation)
    return {name: parameter.grad for name, parameter in trainer.model.named_parameters()}


def test_stopped_and_resumed_it_is_the_same_run_to_the_bit(tmp_path, config):
    config = with_train(config, freeze=FROZEN, steps=4)
    go(tmp_path / "whole", config)
    for stop in (1, 3, 4):
        go(tmp_path / "parts", config, until=stop)
    assert_same_run(contents(tmp_path / "whole", 4), contents(tmp_path / "parts", 4))


def test_what_is_frozen_may_not_change_on_the_way(tmp_path, config):
    begin(tmp_path / "run", with_train(config, freeze=FROZEN))
    resumed = resumed_config(tmp_path / "run", config_file=None, overrides={})
    assert resumed.for_training()[1].freeze == FROZEN
    with pytest.raises(ValueError, match=r"train.freeze was .* and would be .* start a new run"):
        resumed_config(tmp_path / "run", config_file=None, overrides={"train": {"freeze": []}})


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("embeding.*", "'embeding.*' matches no parameter; did you mean embedding.*?"),
        ("layer.0.*", "'layer.0.*' matches no parameter; did you mean layers.0.*?"),
        ("embedding", "'embedding' matches no parameter; did you mean embedding.*?"),
        ("", "'' matches no parameter, such as embedding.weight"),
        ("*", "train.freeze = ['*']: no parameter is left to train"),
    ],
)
def test_patterns_that_freeze_nothing_or_everything_are_rejected(
    tmp_path, config, pattern, message
):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        begin(tmp_path / "run", with_train(config, freeze=(pattern,)))
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_schedule_that_runs_no_other_weights_leaves_nothing_to_train(tiny):
    model = meta_model(tiny.changed(schedule="3x(A)"))
    with pytest.raises(ValueError, match="no parameter is left to train"):
        trained_weights(
            model,
            [Depth(model.schedule)],
            freeze=["embedding.*", "final_norm.*", "layers.*.mixer*"],
        )


def test_the_numbers_of_trained_and_frozen_parameters_are_told(tmp_path, config, capsys):
    config = with_train(config, freeze=FROZEN)
    train(config, tmp_path / "run", until=1, display=show_training)
    model = meta_model(config.model)
    number = sum(parameter.numel() for parameter in model.parameters())
    train_only(model, trained_weights(model, [Depth(model.schedule)], freeze=FROZEN))
    names = frozen_names(model, FROZEN)
    held = sum(model.get_parameter(name).numel() for name in names)
    assert num_trained(model) == number - held
    told = f"{number:,} parameters ({number - held:,} trained, {held:,} frozen), torch rule"
    assert told in capsys.readouterr().err
