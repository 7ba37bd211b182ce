import tomllib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mixerloop.config import dump, run_config
from mixerloop.model.initialization import fresh_model
from mixerloop.training.lr_curve import learning_rate
from mixerloop.training.optimizer import decays, make_optimizer
from small_model import SMALL, small_config
from training_sessions import assert_same_run, contents, go, twelve_steps, weights, with_train

PAPER = {"peak": 5e-4, "warmup_steps": 1000, "total_steps": 100_000}


def test_the_papers_curve():
    assert learning_rate(0, **PAPER) == pytest.approx(5e-7)
    assert learning_rate(499, **PAPER) == pytest.approx(2.5e-4)
    assert learning_rate(999, **PAPER) == 5e-4
    assert learning_rate(1000, **PAPER) == 5e-4
    assert learning_rate(50_500, **PAPER) == pytest.approx(2.5e-4)
    assert 0 < learning_rate(99_999, **PAPER) < 1e-12
    assert learning_rate(100_000, **PAPER) == 0.0


@given(st.integers(0, 300), st.integers(0, 200), st.integers(1, 200))
def test_the_curve_rises_then_falls_between_zero_and_the_peak(step, warmup_steps, more):
    curve = {"peak": 1.0, "warmup_steps": warmup_steps, "total_steps": warmup_steps + more}
    here, then = (learning_rate(s, **curve) for s in (step, step + 1))
    assert 0 <= here <= 1
    if step + 1 < warmup_steps:
        assert here < then
    if step >= warmup_steps:
        assert here >= then


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 0, "warmup_steps": 5, "total_steps": 4}, "5 warm-up steps do not fit into 4"),
        ({"step": -1, "warmup_steps": 0, "total_steps": 4}, "step must be 0 or more"),
    ],
)
def test_a_curve_that_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        learning_rate(peak=1.0, **options)


def test_matrices_decay_and_nothing_else(tiny):
    model = fresh_model(tiny.changed(pass_residual="mixer"), seed=0)
    by_name = decays(model)
    still = {name.removeprefix("layers.0.") for name, decay in by_name.items() if not decay}
    assert {name for name in still if not name.startswith("layers.")} == {
        *("mixer.A_log", "mixer.dt_bias", "mixer.output_norm.weight"),
        *("mixer_norm.weight", "ffn_norm.weight", "final_norm.weight"),
    }
    assert by_name["embedding.weight"]
    assert by_name["layers.2.mixer.qkv_conv"]
    assert by_name["pass_residual.weight"]


def test_every_parameter_is_in_one_group(tiny):
    model = fresh_model(tiny, seed=0)
    optimizer = make_optimizer(model, peak_lr=1e-3, weight_decay=0.1)
    grouped = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert {group["betas"] for group in optimizer.param_groups} == {(0.9, 0.95)}
    assert {group["eps"] for group in optimizer.param_groups} == {1e-8}


def test_the_embedding_and_the_head_may_have_a_rate_of_their_own(tmp_path, hops_data):
    model = small_config(**SMALL, schedule="mixer_loop(2)").changed(tied_head=False)
    config = twelve_steps(hops_data, model)
    go(tmp_path / "same", config, until=1)
    go(tmp_path / "own", with_train(config, embedding_lr=2e-2), until=1)
    before = fresh_model(model, seed=1337).state_dict()
    same, own = (weights(tmp_path / run, 1) for run in ("same", "own"))
    for name, tensor in before.items():
        moved, moved_more = (after[name] - tensor for after in (same, own))
        factor = 2.0 if name in ("embedding.weight", "head.weight") else 1.0
        torch.testing.assert_close(moved_more, factor * moved, rtol=1e-3, atol=1e-7, msg=name)
    go(tmp_path / "parts", with_train(config, embedding_lr=2e-2), until=1)
    for run in ("own", "parts"):
        go(tmp_path / run, with_train(config, embedding_lr=2e-2), until=3)
    assert_same_run(contents(tmp_path / "own", 3), contents(tmp_path / "parts", 3))


def test_a_warm_up_may_be_a_share_of_the_budget(tmp_path, hops_data):
    config = twelve_steps(hops_data, small_config(**SMALL, schedule="mixer_loop(2)"))
    go(tmp_path / "steps", config, until=4)
    shared = run_config(tomllib.loads(dump(config)), {"train": {"warmup": 2 / 12}})
    assert "warmup_steps" not in shared.for_training()[1].table()
    assert run_config(tomllib.loads(dump(shared))) == shared
    go(tmp_path / "share", shared, until=4)
    assert_same_run(contents(tmp_path / "steps", 4), contents(tmp_path / "share", 4))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"warmup": 1.5}, "train.warmup must be a share from 0 to 1"),
        ({"warmup": 0.1, "warmup_steps": 3}, "give one of warmup_steps and warmup"),
        ({"embedding_lr": 0.0}, "train.embedding_lr must be above 0"),
    ],
)
def test_rates_and_warm_ups_without_a_meaning_are_rejected(keys, message):
    with pytest.raises(ValueError, match=message):
        run_config({"model": SMALL, "data": {"path": "x"}, "train": {"steps": 9, **keys}})
