import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixerloop.model.initialization import fresh_model
from mixerloop.training.lr_curve import learning_rate
from mixerloop.training.optimizer import decays, make_optimizer

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
