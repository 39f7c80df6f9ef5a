"""Privacy of releasing only the best of a random number of private runs."""

from __future__ import annotations

import math

import numpy as np

from ._curve import PrivacyCurve
from ._steps import check_delta


def selection_epsilon(curve: PrivacyCurve, delta: float, mean: float, eta: float = 1.0) -> float:
    """Bound epsilon of releasing only the best of a random number of private runs.

    The number of runs is truncated negative binomial with shape `eta` and expectation `mean` (Papernot and
    Steinke 2022): ``eta=1`` geometric, ``eta=0`` logarithmic. The bound is that of Koskela, Redberg and Wang
    (2024):
    ``delta(e) <= mean * delta_Q(e - (eta + 1) log(exp(h) + (1 - g) / g * delta_Q(h)))`` for every h >= 0; the
    best h is taken.

    Parameters
    ----------
    curve : PrivacyCurve
        One run: draw a candidate from a fixed public grid, fit, score privately, all included. If candidates
        differ in privacy, the curve must bound the worst.
    delta : float
        Of the whole selection.
    mean : float
        Expected number of runs, at least 1.
    eta : float
        Above -1.

    Returns
    -------
    float
        Upper bound on epsilon; infinity when the curve gives none.

    Raises
    ------
    ValueError
        If a value is out of range.

    Examples
    --------
    >>> from skdpbayes.privacy import GaussianSteps, compose, selection_epsilon
    >>> one = compose(GaussianSteps(10.0, 1.0, 1))
    >>> one.epsilon(1e-5) < selection_epsilon(one, 1e-5, mean=10) < 10 * one.epsilon(1e-6)
    True
    """
    delta = check_delta(delta)
    if not (math.isfinite(mean) and mean >= 1.0):
        raise ValueError(f"mean, the expected number of runs, must be finite and at least 1, got {mean!r}.")
    if not (math.isfinite(eta) and eta > -1.0):
        raise ValueError(f"eta must be above -1 (0 logarithmic, 1 geometric number of runs), got {eta!r}.")
    base = curve.epsilon(delta / mean)
    if not math.isfinite(base):
        return math.inf
    odds = truncated_negative_binomial_odds(mean, eta)
    grid = np.linspace(0.0, 2.0 * base + 1.0, 4001)
    shift = np.min(np.logaddexp(grid, np.log(np.maximum(odds * np.asarray(curve.delta(grid)), 1e-300))))
    return base + (eta + 1.0) * float(shift)


def truncated_negative_binomial_odds(mean: float, eta: float) -> float:
    """Return (1 - g) / g of the truncated negative binomial law with shape `eta` and expectation `mean`.

    The expectation is ``eta (1 - g) / (g (1 - g**eta))``, or ``(1 / g - 1) / log(1 / g)`` for eta = 0.
    """

    def expectation(log_inverse: float) -> float:  # log(1 / g)
        odds = math.expm1(log_inverse)
        if log_inverse == 0.0:
            return 1.0
        if abs(eta) * log_inverse < 1e-8:
            return odds / log_inverse
        return eta * odds / -math.expm1(-eta * log_inverse)

    low, high = 0.0, 1.0
    while expectation(high) < mean:
        low, high = high, 2.0 * high
    for _ in range(200):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if expectation(middle) < mean:
            low = middle
        else:
            high = middle
    return math.expm1(high)
