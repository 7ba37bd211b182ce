"""Initial decay rates and time steps, spread as in Mamba."""

import numpy as np

from mixerloop import draws as exact
from mixerloop.draws import Draws

LARGEST_RATE = 16.0  # of exp(A_log)
STEP_RANGE = (0.001, 0.1)  # softplus(dt_bias)
SOFTPLUS_TERMS = 12  # of the series of expm1, at steps this small


def draw_log_rates(num: int, draws: Draws, *, least: float = 0.0) -> np.ndarray:
    """A_log: decay rates are uniform from `least` on."""
    return exact.log(least + (LARGEST_RATE - least) * draws.uniforms(num))


def draw_step_biases(num: int, draws: Draws) -> np.ndarray:
    """dt_bias: the logarithms of time steps are uniform."""
    low, high = exact.log(np.array(STEP_RANGE))
    return _inverse_softplus(exact.exp(low + (high - low) * draws.uniforms(num)))


def _inverse_softplus(step: np.ndarray) -> np.ndarray:
    """log(e^step - 1) of small steps, by the series of e^step - 1."""
    series = np.ones_like(step)
    for term in range(SOFTPLUS_TERMS, 1, -1):
        series = series * (step / term) + 1
    return exact.log(step * series)
