"""Random numbers whose bits are the same on every CPU.

torch's normal draws differ in their last bits between instruction sets, and the logarithms of a C
library differ between processors. Here numpy's Philox makes integers, and integers become floats
by operations that IEEE 754 rounds exactly: + - * / and the square root.
"""

import hashlib

import numpy as np

BLOCK = 2**13  # numbers per block, so that a block stays in the CPU's cache
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # their sum is ln 2
LOG_TERMS, EXP_TERMS = 12, 15  # enough for float64 over the reduced ranges below


class Draws:
    """A stream of random numbers; equal names give equal streams."""

    def __init__(self, *names: object) -> None:
        digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
        self._generator = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    def uniforms(self, num: int) -> np.ndarray:
        """The next `num` numbers between 0 and 1, excluding both."""
        return ((self._generator.random_raw(num) >> np.uint64(12)) + 0.5) * 2.0**-52

    def normals(self, num: int) -> np.ndarray:
        """The next `num` numbers of mean 0 and variance 1."""
        drawn = np.empty(num)
        for at in range(0, num, BLOCK):
            here = drawn[at : at + BLOCK]
            here[:] = normal_quantile(self.uniforms(len(here)))
        return drawn


def normal_quantile(p: np.ndarray) -> np.ndarray:
    """The inverse of the normal distribution function, to about 1e-15 (Wichura 1988, AS 241)."""
    from_middle = p - 0.5
    x = from_middle * _ratio(CENTRAL * CENTRAL - from_middle * from_middle, *IN_THE_CENTRE)
    tails = np.flatnonzero(np.abs(from_middle) > CENTRAL)  # where the formula above is invalid
    p, is_lower = p[tails], from_middle[tails] < 0
    depth = np.sqrt(-log(np.where(is_lower, p, 1 - p)))
    size = _ratio(depth - NEAR, *IN_THE_TAIL)
    far = np.flatnonzero(depth > FAR)
    size[far] = _ratio(depth[far] - FAR, *IN_THE_FAR_TAIL)
    x[tails] = np.where(is_lower, -size, size)
    return x


def log(x: np.ndarray) -> np.ndarray:
    """The natural logarithm of positive numbers, to a few units in the last place."""
    mantissa, exponent = np.frexp(x)
    small = mantissa < 0.5**0.5
    mantissa, exponent = np.where(small, 2 * mantissa, mantissa), exponent - small
    s = (mantissa - 1) / (mantissa + 1)  # log m = 2 artanh s
    square, series = s * s, np.zeros_like(s)
    for term in range(LOG_TERMS, -1, -1):
        series = series * square + 2 / (2 * term + 1)
    return exponent * LN2_HIGH + (s * series + exponent * LN2_LOW)


def exp(x: np.ndarray) -> np.ndarray:
    """E to the power of numbers of moderate size, to a few units in the last place."""
    power = np.rint(x / (LN2_HIGH + LN2_LOW))
    rest = x - power * LN2_HIGH - power * LN2_LOW
    series = np.ones_like(rest)
    for term in range(EXP_TERMS, 0, -1):
        series = series * (rest / term) + 1
    return np.ldexp(series, power.astype(np.int64))


def _ratio(
    x: np.ndarray, numerator: tuple[float, ...], denominator: tuple[float, ...]
) -> np.ndarray:
    """A polynomial over another, by Horner's rule from the highest power."""
    above, below = (np.full_like(x, highest) for highest in (numerator[-1], denominator[-1]))
    for polynomial, coefficients in ((above, numerator), (below, denominator)):
        for coefficient in coefficients[-2::-1]:
            polynomial *= x
            polynomial += coefficient
    return above / below


CENTRAL, NEAR, FAR = 0.425, 1.6, 5.0
"""Limits between the approximations: of |p - 1/2|, and of the square root of -log p."""
IN_THE_CENTRE = (
    (
        *(3.3871328727963666080, 1.3314166789178437745e2, 1.9715909503065514427e3),
        *(1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4),
        *(3.3430575583588128105e4, 2.5090809287301226727e3),
    ),
    (
        *(1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3),
        *(2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4),
        5.2264952788528545610e3,
    ),
)
IN_THE_TAIL = (
    (
        *(1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550),
        *(3.64784832476320460504, 1.27045825245236838258, 2.41780725177450611770e-1),
        *(2.27238449892691845833e-2, 7.74545014278341407640e-4),
    ),
    (
        *(1.0, 2.05319162663775882187, 1.67638483018380384940, 6.89767334985100004550e-1),
        *(1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4),
        1.05075007164441684324e-9,
    ),
)
IN_THE_FAR_TAIL = (
    (
        *(6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580),
        *(2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3),
        *(2.71155556874348757815e-5, 2.01033439929228813265e-7),
    ),
    (
        *(1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2),
        *(7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7),
        2.04426310338993978564e-15,
    ),
)
