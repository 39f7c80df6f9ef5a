"""Scores of posterior draws: accuracy and width."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from skdpbayes.calibration._check import (
    Floats,
    check_draws,
    check_draws_and_truth,
    check_open_unit,
)


def crps(draws: ArrayLike, truth: ArrayLike) -> Floats:
    """Continuous ranked probability score of each posterior marginal; smaller is better.

    ``E|X - y| - E|X - X'| / 2`` for independent draws X, X' and the truth y, in the unit of the
    parameter. It is a proper score: the exact posterior has the smallest on average, so it ranks
    posteriors that are all calibrated. The score of a point estimate is its absolute error.

    Parameters
    ----------
    draws : array-like of shape (n_replicates, n_draws, n_parameters)
        At least two draws.
    truth : array-like of shape (n_replicates, n_parameters)

    Returns
    -------
    array of shape (n_replicates, n_parameters)
        The fair estimate: unbiased for any number of independent draws, so it may be negative.

    Raises
    ------
    ValueError
        If shapes do not agree, a value is not finite, or there is only one draw.

    References
    ----------
    Gneiting and Raftery (2007), *Strictly proper scoring rules, prediction, and estimation*,
    equation 21; Ferro (2014), *Fair scores for ensemble forecasts*, for the estimate.

    Examples
    --------
    >>> from skdpbayes.calibration import crps
    >>> crps([[[1.0], [3.0]]], [[0.0]])
    array([[1.]])
    """
    draws, truth = check_draws_and_truth(draws, truth)
    n_replicates, n_draws, n_parameters = draws.shape
    if n_draws < 2:
        raise ValueError("crps needs at least 2 draws of each posterior, got 1.")
    # The sum of |x_i - x_j| over pairs is linear in the sorted draws: x_(i) is added i times and
    # subtracted n - 1 - i times.
    weights = (2 * np.arange(n_draws) - n_draws + 1) / (n_draws * (n_draws - 1))
    scores = np.empty((n_replicates, n_parameters))
    for k in range(n_replicates):  # one replicate at a time keeps the copies small
        errors = np.sort(draws[k] - truth[k], axis=0)
        scores[k] = np.abs(errors).mean(axis=0) - weights @ errors
    return scores


def interval_width(draws: ArrayLike, level: float = 0.9) -> Floats:
    """Widths of the equal-tailed credible intervals of `marginal_coverage`.

    Parameters
    ----------
    draws : array-like of shape (n_replicates, n_draws, n_parameters)
    level : float, default=0.9
        Probability of the interval; ``2 / (1 - level) - 1`` draws or more are needed.

    Returns
    -------
    array of shape (n_replicates, n_parameters)
        In the unit of the parameter.

    Raises
    ------
    ValueError
        If the shape is wrong, a value is not finite, or there are too few draws for `level`.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.calibration import interval_width
    >>> interval_width(np.arange(1.0, 100.0)[None, :, None], level=0.9).round(9)
    array([[90.]])
    """
    lower, upper = interval_ends(check_draws(draws), level)
    return upper - lower


def interval_ends(draws: Floats, level: float) -> Floats:
    """Ends of equal-tailed intervals, of shape (2, n_replicates, n_parameters).

    Quantiles at position ``p (n_draws + 1)`` of the sorted draws: the interval then contains one
    more independent draw with probability `level`. With NumPy's default the probability would be
    ``level (n_draws - 1) / (n_draws + 1)``.
    """
    level = check_open_unit(level, "level")
    tail = (1.0 - level) / 2
    if tail * (draws.shape[1] + 1) < 1.0 - 1e-9:
        least = int(np.ceil(1 / tail - 1 - 1e-6))
        raise ValueError(
            f"intervals of level {level} need at least {least} draws, got {draws.shape[1]}."
        )
    return np.quantile(draws, [tail, 1.0 - tail], axis=1, method="weibull")
