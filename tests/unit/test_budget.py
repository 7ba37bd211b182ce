import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixerloop.config import TrainConfig
from mixerloop.training.budget import Budget, budget_of

PER_STEP = {"tokens_per_step": 1000, "flops_per_token": 50.0}


@pytest.mark.parametrize(
    ("budget", "steps"),
    [
        ({"steps": 7}, 7),
        ({"tokens": 7000}, 7),
        ({"tokens": 7001}, 8),
        ({"flops": 350_000.0}, 7),
        ({"flops": 350_001.0}, 8),
    ],
)
def test_tokens_and_flops_buy_steps(budget, steps):
    assert budget_of(TrainConfig(warmup_steps=0, **budget), **PER_STEP).steps == steps


@pytest.mark.parametrize(("wanted", "taken"), [(0, 0), (7, 7), (8, 3.5), (1000, 3.5)])
def test_of_a_budget_that_is_too_short_for_the_warm_up_the_first_half_is_one(wanted, taken):
    budget = budget_of(TrainConfig(tokens=7000, warmup_steps=wanted), **PER_STEP)
    assert budget.warmup_steps(wanted, total_steps=7) == taken


@given(st.integers(0, 1000), st.floats(0.0, 99.0))
def test_a_number_of_steps_does_not_look_at_the_clock(step, seconds):
    budget = Budget(steps=100, seconds=None)
    assert budget.total_steps(step, seconds) == 100
    assert budget.is_spent(step, seconds) == (step >= 100)


def test_seconds_promise_steps_at_the_mean_speed_so_far():
    budget = budget_of(TrainConfig(seconds=60.0), **PER_STEP)
    assert budget.total_steps(0, 0.0) == math.inf
    assert budget.total_steps(10, 6.0) == pytest.approx(100)
    assert budget.total_steps(80, 60.0) == pytest.approx(80)
    assert not budget.is_spent(10**9, 59.9)
    assert budget.is_spent(0, 60.0)
