"""Scores of posterior draws: how near the truth, and how sure."""

from __future__ import annotations

from typing import Any

import numpy as np

from skdpbayes.calibration._check import check_draws, check_draws_and_truth, check_open_unit


def crps(draws: Any, truth: Any) -> np.ndarray:
    """Continuous ranked probability score of each posterior marginal; smaller is better.

    ``E|X - y| - E|X - X'| / 2`` for independent draws X, X' and the truth y, in the unit of the
    parameter. It is a proper score: on average the right posterior has the smallest, so that it
    tells apart posteriors that are all calibrated. A point gets its absolute error.

    Parameters
    ----------
    draws : array-like of shape (n_replicates, n_draws, n_parameters)
        At least two draws.
    truth : array-like of shape (n_replicates, n_parameters)

    Returns
    -------
    array of shape (n_replicates, n_parameters)
        The fair estimate: unbiased for independent draws, however few, so that it may be negative.

    Raises
    ------
    ValueError
        If shapes do not agree, a value is not finite, or there is one draw only.

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
    # Sorted, the sum of |x_i - x_j| over pairs i < j is a weighted sum: x_(i) is added i times and
    # taken off n - 1 - i.
    weights = (2 * np.arange(n_draws) - n_draws + 1) / (n_draws * (n_draws - 1))
    scores = np.empty((n_replicates, n_parameters))
    for k in range(n_replicates):  # one replicate at a time keeps the copies small
        errors = np.sort(draws[k] - truth[k], axis=0)
        scores[k] = np.abs(errors).mean(axis=0) - weights @ errors
    return scores


def interval_width(draws: Any, level: float = 0.9) -> np.ndarray:
    """Widths of the equal-tailed credible intervals that `marginal_coverage` counts.

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


def interval_ends(draws: np.ndarray, level: float) -> np.ndarray:
    """Ends of equal-tailed intervals, of shape (2, n_replicates, n_parameters).

    Quantiles at position ``p (n_draws + 1)`` of the sorted draws, with which an interval of
    independent draws holds one more draw with probability `level`; NumPy's default makes it ``level
    (n_draws - 1) / (n_draws + 1)``.
    """
    level = check_open_unit(level, "level")
    tail = (1.0 - level) / 2
    if tail * (draws.shape[1] + 1) < 1.0 - 1e-9:
        raise ValueError(
            f"intervals of level {level} need at least {int(np.ceil(1 / tail - 1 - 1e-6))} draws, got {draws.shape[1]}."
        )
    return np.quantile(draws, [tail, 1.0 - tail], axis=1, method="weibull")
