"""Depth rules: how many passes a step trains, as weights of each number of passes.

A rule is a function of the numbers in its text, such as `uniform(1, 4)`. See `training/depth.py`
for how a step draws its depth.
"""

import inspect
import math
from collections.abc import Callable

from mixerloop.parsing import name_and_numbers, suggest

PassWeights = dict[int, float]
"""The weight of each number of passes."""
FIXED = "fixed"
"""The depth of a run that always trains the schedule of its model."""
MOST_PASSES = 1000
SIGMA = 0.5
"""The deviation of the logarithm of the rate in Huginn (arXiv 2502.05171)."""
WIDEST = 9.0
"""Deviations of that logarithm that count; the weights of others are rounding."""
NODES = 800  # of the trapezoidal rule over the rate, which is exact to rounding for a Gaussian
DEPTHS: dict[str, Callable[..., PassWeights]] = {}
"""The registered rules, by name."""


def depth_rule(name: str) -> Callable[[Callable[..., PassWeights]], Callable[..., PassWeights]]:
    """Register a function of numbers as a depth rule, from a file of your own too."""

    def register(rule: Callable[..., PassWeights]) -> Callable[..., PassWeights]:
        DEPTHS[name] = rule
        return rule

    return register


@depth_rule("uniform")
def uniform(least: int, most: int) -> PassWeights:
    """Every number of passes from `least` to `most` alike."""
    return dict.fromkeys(range(least, most + 1), 1.0)


@depth_rule("geometric")
def geometric(stop: float, most: int) -> PassWeights:
    """After each pass the walk stops with probability `stop`, and at `most` passes."""
    weights = {passes: stop * (1 - stop) ** (passes - 1) for passes in range(1, most)}
    return weights | {most: (1 - stop) ** (most - 1)}


@depth_rule("poisson")
def poisson(mean: float, most: int | None = None) -> PassWeights:
    """One pass and a Poisson number of passes, whose rate is log-normal with this mean, as Huginn.

    Draws above `most`, four times the mean by default, count as `most`.
    """
    most = min(MOST_PASSES, max(2, math.ceil(4 * mean))) if most is None else most
    deviations = [WIDEST * (2 * node / NODES - 1) for node in range(NODES + 1)]
    densities = [math.exp(-(deviation**2) / 2) for deviation in deviations]
    log_rates = [math.log(mean) - SIGMA**2 / 2 + SIGMA * deviation for deviation in deviations]
    weights = {}
    for extra in range(most - 1):
        log_factorial = math.lgamma(extra + 1)
        chances = [math.exp(extra * log - math.exp(log) - log_factorial) for log in log_rates]
        weighted = sum(chance * share for chance, share in zip(chances, densities, strict=True))
        weights[extra + 1] = weighted / sum(densities)
    return weights | {most: max(0.0, 1 - sum(weights.values()))}


def pass_weights(text: str) -> PassWeights:
    """The weights that a rule's text says, as shares; raises for text that no rule understands."""
    name, numbers = name_and_numbers(text, such_as="fixed or uniform(1, 4)")
    if name == FIXED:
        raise ValueError(f"depth '{text}': {FIXED} has no numbers")
    if name not in DEPTHS:
        raise ValueError(f"unknown depth '{name}'; {suggest(name, [FIXED, *DEPTHS])}")
    if not all(abs(number) <= MOST_PASSES for number in numbers):
        raise ValueError(f"depth '{text}': numbers must be at most {MOST_PASSES:,}")
    rule, whole = DEPTHS[name], [int(one) if one == int(one) else one for one in numbers]
    names = ", ".join(inspect.signature(rule).parameters)
    try:
        inspect.signature(rule).bind(*whole)
    except TypeError:
        raise ValueError(f"depth '{text}': give {name}({names})") from None
    try:
        weights = rule(*whole)
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise ValueError(f"depth '{text}', {name}({names}): {error}") from None
    if not isinstance(weights, dict) or not all(type(passes) is int for passes in weights):
        raise ValueError(f"depth '{text}': {name} must return weights by whole numbers of passes")
    weights = {passes: weight for passes, weight in weights.items() if weight != 0}
    total = sum(weights.values())
    if not weights or min(weights.values()) < 0 or not 0 < total < math.inf:
        raise ValueError(f"depth '{text}': no numbers of passes have weights, of {name}({names})")
    if not 1 <= min(weights) <= max(weights) <= MOST_PASSES:
        raise ValueError(f"depth '{text}': passes must be from 1 to {MOST_PASSES:,}")
    return {passes: weight / total for passes, weight in sorted(weights.items())}
