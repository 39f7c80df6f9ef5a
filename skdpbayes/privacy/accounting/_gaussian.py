"""The Gaussian mechanism without sampling, in closed form.

With mu = sensitivity / standard deviation (summed in squares over releases),
``delta(eps) = Phi(mu/2 - eps/mu) - exp(eps) Phi(-mu/2 - eps/mu)`` (Balle and Wang 2018, theorem 8).
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Floats = NDArray[np.float64]

_ROOT_HALF_PI = math.sqrt(math.pi / 2.0)
_ROOT_2 = math.sqrt(2.0)
_ROOT_2PI = math.sqrt(2.0 * math.pi)


def gaussian_delta(epsilon: ArrayLike, mu: float) -> Floats:
    """Return delta(epsilon) of a Gaussian mechanism of signal-to-noise ratio `mu`.

    Parameters
    ----------
    epsilon : array_like
        At least 0, any shape.
    mu : float
        Above 0.

    Returns
    -------
    ndarray of the shape of `epsilon`
        To a relative error near 1e-10 even where delta is 1e-200: the two terms share the factor
        phi(t), so only Mills ratios are subtracted.
    """
    eps = np.asarray(epsilon, dtype=float)
    low, high = eps / mu - mu / 2.0, eps / mu + mu / 2.0
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        density = np.exp(-0.5 * low * low) / _ROOT_2PI
        mills = special.erfcx(low / _ROOT_2) - special.erfcx(high / _ROOT_2)
        tail = density * _ROOT_HALF_PI * mills
        # Far to the left erfcx overflows, and nothing cancels.
        bulk = special.ndtr(-low) - density * _ROOT_HALF_PI * special.erfcx(high / _ROOT_2)
    deltas: Floats = np.clip(np.where(low > -5.0, tail, bulk), 0.0, 1.0)
    return deltas


@functools.lru_cache(maxsize=1024)  # plans ask for the same again and again
def gaussian_epsilon(delta: float, mu: float) -> float:
    """Return the smallest epsilon with ``gaussian_delta(epsilon, mu) <= delta``, from above."""
    if float(gaussian_delta(0.0, mu)) <= delta:
        return 0.0
    low, high = 0.0, mu * (mu / 2.0 + 1.0)
    while float(gaussian_delta(high, mu)) > delta:
        low, high = high, 2.0 * high
        if not math.isfinite(high):
            return math.inf
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if float(gaussian_delta(middle, mu)) > delta:
            low = middle
        else:
            high = middle
    return high * (1.0 + 1e-13)


@functools.lru_cache(maxsize=1024)  # plans ask for the same again and again
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu that is (epsilon, delta)-private, to 1e-12, from below."""
    low, high = 0.0, 1.0
    while float(gaussian_delta(epsilon, high)) <= delta:
        low, high = high, 2.0 * high
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if float(gaussian_delta(epsilon, middle)) <= delta:
            low = middle
        else:
            high = middle
    return low


def gaussian_tpr(fpr: Floats, mu: float) -> Floats:
    """Return the largest true positive rate at `fpr` (Dong, Roth and Su 2022)."""
    rates: Floats = special.ndtr(special.ndtri(fpr) + mu)
    return rates
