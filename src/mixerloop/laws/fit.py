"""Fit the law of one loop to the NLL of its cells.

    L = E + A (N_once + r^phi N_rec)^-alpha + B D^-beta

L is the held-out NLL, N_once and N_rec are parameters that run once and in r passes, and D is the
number of training tokens. The residuals are those of the NLL, not of its logarithm: the law adds
its terms in nats, and residuals in nats can be compared with the spread of seeds. Seeds of a cell
are averaged first, and a mean of m seeds has the weight m.

The fit is Huber's: a cell that is further than `HUBER` standard deviations from the law pulls no
harder than one at that distance. The standard deviation is estimated together with the law
(Huber's proposal 2), so the fit needs no scale from outside. All parameters but phi are positive
and are fitted as logarithms; A and B are fitted as the nats of their terms at the mean size and
budget, because A itself changes by orders of magnitude with alpha.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from mixerloop.laws.points import Point

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

Numbers = np.ndarray
"""The fitted numbers of a law, one for each of `PARAMETERS`; `Design` says which they are."""
PARAMETERS = ("E", "A", "alpha", "B", "beta", "phi")
FLOOR, SIZE_TERM, ALPHA, TOKEN_TERM, BETA, PHI = range(len(PARAMETERS))
HUBER = 2.0
"""Standard deviations at which the loss of a residual turns from a square into a line."""
KEPT_VARIANCE = 0.9205
"""The variance of a standard normal that is clipped at `HUBER`."""
SMALLEST_FLOOR = 1e-3
"""Nats; the largest floor is the smallest NLL."""
TERM_BOUNDS = (1e-4, 1e2)
"""Nats of the size term and of the token term at the mean size and budget."""
EXPONENT_BOUNDS = (0.03, 2.0)
"""Of alpha and beta; published exponents of language models are between 0.07 and 0.7."""
PHI_BOUNDS = (-2.0, 2.0)
"""A loop that does harm has a phi below 0, so 0 is no bound."""
START_EXPONENTS = (0.2, 0.6)
START_PHI = 0.4
ROUNDS = 30
SCALE_AGREES = 1e-4
"""The relative change of the standard deviation at which its estimate has converged."""
EXACT = 1e-9
"""Nats; cells that lie this close to the law are taken to lie on it."""
AT_BOUND = 1e-3
"""The share of a parameter's range that counts as its bound."""


@dataclass(frozen=True, kw_only=True)
class LawFit:
    """The law of one loop."""

    floor: float
    """E, the NLL of a model and a budget without limits."""
    size_factor: float
    """A."""
    alpha: float
    token_factor: float
    """B."""
    beta: float
    phi: float
    residuals: tuple[float, ...]
    """The mean NLL of each group of cells minus the law, in nats."""
    run_sd: float
    """The standard deviation of a single run around the law, in nats."""
    freedom: int
    """Degrees of freedom of the standard deviation."""
    at_bound: tuple[str, ...]
    """Parameters that lie at a bound of their range, where the cells do not decide."""

    @property
    def values(self) -> dict[str, float]:
        """The parameters by the names that the law gives them."""
        figures = (self.floor, self.size_factor, self.alpha, self.token_factor, self.beta, self.phi)
        return dict(zip(PARAMETERS, figures, strict=True))


def predicted_nll(
    values: dict[str, float], *, once: float, recurrent: float, passes: float, tokens: float
) -> float:
    """The NLL that a law with these parameters gives a model and a budget."""
    size = once + passes ** values["phi"] * recurrent
    size_term = values["A"] * size ** -values["alpha"]
    return values["E"] + size_term + values["B"] * tokens ** -values["beta"]


class Design:
    """The cells of a fit as arrays, and the law as a function of the fitted numbers.

    The fitted numbers are log E, the logarithms of both terms at the mean size and budget, log
    alpha, log beta, and phi, in the order of `PARAMETERS`.
    """

    def __init__(self, groups: Sequence[Point], *, floor: float | None = None) -> None:
        self.once = np.array([group.once for group in groups], dtype=float)
        self.recurrent = np.array([group.recurrent for group in groups], dtype=float)
        self.passes = np.array([group.passes for group in groups], dtype=float)
        self.tokens = np.array([group.tokens for group in groups], dtype=float)
        self.nll = np.array([group.nll for group in groups])
        self.weights = np.sqrt([len(group.nlls) for group in groups])
        self.mean_size = float(np.exp(np.log(self.once + self.recurrent).mean()))
        self.mean_tokens = float(np.exp(np.log(self.tokens).mean()))
        self.log_passes = np.log(self.passes)
        self.log_tokens = np.log(self.tokens / self.mean_tokens)
        self.fixed_floor = floor
        self.free = [n for n in range(len(PARAMETERS)) if floor is None or n != FLOOR]
        largest_floor = max(float(self.nll.min()), 2 * SMALLEST_FLOOR)
        self.bounds = np.array(
            [
                np.log([SMALLEST_FLOOR, largest_floor]),
                np.log(TERM_BOUNDS),
                np.log(EXPONENT_BOUNDS),
                np.log(TERM_BOUNDS),
                np.log(EXPONENT_BOUNDS),
                PHI_BOUNDS,
            ]
        )

    @property
    def freedom(self) -> int:
        """Groups of cells beyond the number of fitted parameters."""
        return len(self.nll) - len(self.free)

    def terms(self, numbers: Numbers) -> tuple[np.ndarray, ...]:
        """The size term, the token term, the logarithm of the size, and its slope in phi."""
        recurrent = self.recurrent * np.exp(numbers[PHI] * self.log_passes)
        size = self.once + recurrent
        log_size = np.log(size / self.mean_size)
        size_term = np.exp(numbers[SIZE_TERM] - math.exp(numbers[ALPHA]) * log_size)
        token_term = np.exp(numbers[TOKEN_TERM] - math.exp(numbers[BETA]) * self.log_tokens)
        return size_term, token_term, log_size, recurrent * self.log_passes / size

    def floor(self, numbers: Numbers) -> float:
        """E, which may be given."""
        return math.exp(numbers[FLOOR]) if self.fixed_floor is None else self.fixed_floor

    def law(self, numbers: Numbers) -> np.ndarray:
        """The NLL of each group by the law."""
        size_term, token_term, _, _ = self.terms(numbers)
        return self.floor(numbers) + size_term + token_term

    def jacobian(self, numbers: Numbers) -> np.ndarray:
        """The derivatives of the law by the fitted numbers."""
        size_term, token_term, log_size, size_slope = self.terms(numbers)
        alpha, beta = math.exp(numbers[ALPHA]), math.exp(numbers[BETA])
        columns = np.empty((len(self.nll), len(PARAMETERS)))
        columns[:, FLOOR] = self.floor(numbers)
        columns[:, SIZE_TERM] = size_term
        columns[:, ALPHA] = -alpha * log_size * size_term
        columns[:, TOKEN_TERM] = token_term
        columns[:, BETA] = -beta * self.log_tokens * token_term
        columns[:, PHI] = -alpha * size_term * size_slope
        return columns

    def starts(self) -> list[Numbers]:
        """Points to start from: a grid of exponents, with the terms that suit each best."""
        from scipy.optimize import nnls

        starts = []
        for alpha, beta in product(START_EXPONENTS, repeat=2):
            numbers = np.array([0.0, 0.0, math.log(alpha), 0.0, math.log(beta), START_PHI])
            size_term, token_term, _, _ = self.terms(numbers)
            columns = [size_term, token_term]
            if self.fixed_floor is None:
                columns = [np.ones_like(self.nll), *columns]
            above = self.nll - (self.fixed_floor or 0.0)
            weighted = np.stack(columns, axis=1) * self.weights[:, None]
            solution, _ = nnls(weighted, np.maximum(above, 0.0) * self.weights)
            terms = np.log(np.maximum(solution, 1e-12))
            numbers[SIZE_TERM], numbers[TOKEN_TERM] = terms[-2:]
            if self.fixed_floor is None:
                numbers[FLOOR] = terms[0]
            starts.append(self.inside(numbers))
        return starts

    def at_bound(self, numbers: Numbers) -> np.ndarray:
        """Whether each number lies at an end of its range."""
        low, high = self.bounds.T
        margin = AT_BOUND * (high - low)
        return (numbers <= low + margin) | (numbers >= high - margin)

    def inside(self, numbers: Numbers) -> Numbers:
        """The nearest point that is not at a bound, from which a search can move anywhere."""
        low, high = self.bounds.T
        margin = 0.01 * (high - low)
        return np.clip(numbers, low + margin, high - margin)


def fit_design(
    design: Design,
    nll: np.ndarray,
    *,
    start: Numbers,
    clip: float,
) -> "tuple[Numbers, OptimizeResult]":
    """The best fitted numbers that are reached from a start.

    Weighted residuals beyond `clip` have a linear loss.
    """
    from scipy.optimize import least_squares

    free = design.free
    numbers = start.copy()

    def whole(some: np.ndarray) -> Numbers:
        numbers[free] = some
        return numbers

    low, high = design.bounds[free].T
    found = least_squares(
        lambda some: design.weights * (design.law(whole(some)) - nll),
        np.clip(start[free], low + 1e-9, high - 1e-9),
        jac=lambda some: design.weights[:, None] * design.jacobian(whole(some))[:, free],  # pyright: ignore
        bounds=(low, high),
        loss="linear" if math.isinf(clip) else "huber",
        f_scale=1.0 if math.isinf(clip) else clip,
        xtol=1e-8,
        ftol=1e-9,
        gtol=1e-12,
        max_nfev=300,
    )
    return whole(found.x).copy(), found


def fit_numbers(design: Design) -> tuple[Numbers, float]:
    """The fitted numbers and the standard deviation of a run around the law."""
    starts = design.starts()
    numbers = _best(design, starts, clip=np.inf)
    run_sd = _rms(design, numbers)
    for _ in range(ROUNDS):
        if run_sd < EXACT:
            return numbers, run_sd
        before = run_sd
        numbers, _ = fit_design(design, design.nll, start=numbers, clip=HUBER * run_sd)
        run_sd = _clipped_rms(design, numbers, clip=HUBER * run_sd)
        if abs(run_sd - before) < SCALE_AGREES * before:
            break
    return _best(design, [numbers, *starts], clip=HUBER * run_sd), run_sd


def parameter_values(design: Design, numbers: Numbers) -> Numbers:
    """The parameters of the law, in the order of `PARAMETERS`, from the fitted numbers."""
    alpha, beta = math.exp(numbers[ALPHA]), math.exp(numbers[BETA])
    values = np.empty(len(PARAMETERS))
    values[FLOOR] = design.floor(numbers)
    values[SIZE_TERM] = math.exp(numbers[SIZE_TERM] + alpha * math.log(design.mean_size))
    values[ALPHA] = alpha
    values[TOKEN_TERM] = math.exp(numbers[TOKEN_TERM] + beta * math.log(design.mean_tokens))
    values[BETA] = beta
    values[PHI] = numbers[PHI]
    return values


def law_of(design: Design, numbers: Numbers, run_sd: float) -> LawFit:
    """The law with its own parameters in place of the fitted numbers."""
    names = ("floor", "size_factor", "alpha", "token_factor", "beta", "phi")
    values = map(float, parameter_values(design, numbers))
    return LawFit(
        **dict(zip(names, values, strict=True)),
        residuals=tuple(float(r) for r in design.nll - design.law(numbers)),
        run_sd=run_sd,
        freedom=design.freedom,
        at_bound=tuple(PARAMETERS[n] for n in design.free if design.at_bound(numbers)[n]),
    )


def fit_groups(groups: Sequence[Point], *, floor: float | None = None) -> LawFit:
    """Fit the law of one loop to its groups of cells and those without a loop.

    `floor` is E, if it is known. Whether the groups identify the law is not checked here.
    """
    design = Design(groups, floor=floor)
    return law_of(design, *fit_numbers(design))


def _best(design: Design, starts: Sequence[Numbers], *, clip: float) -> Numbers:
    """The best of the fits from several starts."""
    fits = [fit_design(design, design.nll, start=start, clip=clip) for start in starts]
    return min(fits, key=lambda fit: fit[1].cost)[0]


def _rms(design: Design, numbers: Numbers) -> float:
    residuals = design.weights * (design.nll - design.law(numbers))
    return math.sqrt(float((residuals**2).sum()) / max(1, design.freedom))


def _clipped_rms(design: Design, numbers: Numbers, *, clip: float) -> float:
    residuals = design.weights * (design.nll - design.law(numbers))
    squares = np.minimum(residuals**2, clip**2)
    return math.sqrt(float(squares.sum()) / (KEPT_VARIANCE * max(1, design.freedom)))
