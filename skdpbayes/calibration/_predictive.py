"""Predicted probabilities beside the frequencies that come true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from skdpbayes.calibration._check import binomial_band, check_binary, check_count, check_open_unit


@dataclass(frozen=True)
class Reliability:
    """Predicted probabilities in bins, beside the frequencies that came true.

    Attributes
    ----------
    edges : array of shape (n_bins + 1,)
        Bin b holds the predictions in ``(edges[b], edges[b + 1]]``, the first bin its lower edge
        too.
    predicted : array of shape (n_bins,)
        Mean predicted probability; NaN in empty bins, as in the next three.
    observed : array of shape (n_bins,)
        Fraction of outcomes that are 1.
    lower, upper : arrays of shape (n_bins,)
        Consistency band: between these is, with probability `confidence` or more, the fraction
        observed if predictions are calibrated.
    count : array of int, shape (n_bins,)
        Number of predictions.
    confidence : float
        Of the band, in each bin by itself.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.calibration import reliability
    >>> rng = np.random.default_rng(0)
    >>> proba = rng.random(1000)
    >>> found = reliability(rng.random(1000) < proba, proba)
    >>> found.observed.shape == found.predicted.shape, int(found.count.sum())
    (True, 1000)
    """

    edges: np.ndarray
    predicted: np.ndarray
    observed: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    count: np.ndarray
    confidence: float


def calibration_error(
    y_true: Any, proba: Any, *, n_bins: int = 10, strategy: str = "uniform", norm: str = "l1"
) -> float:
    """Distance between predicted probabilities and the frequencies that come true, over bins.

    Predictions are sorted into bins. In bin b let ``gap`` be the fraction of outcomes that are 1
    minus the mean predicted probability, and ``n_b`` the number of predictions; empty bins do not
    count.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Outcomes, 0 or 1.
    proba : array-like of shape (n_samples,)
        Predicted probability of the outcome 1.
    n_bins : int, default=10
    strategy : {"uniform", "quantile"}, default="uniform"
        Bins of equal width on [0, 1], or of (about) equally many predictions. Edges and bins are
        those of scikit-learn's `calibration_curve`.
    norm : {"l1", "rmse", "max"}, default="l1"
        - ``"l1"``: sum over bins of ``n_b / n_samples * |gap|``, the usual expected calibration
          error;
        - ``"rmse"``: ``sqrt(mean(gap^2))`` over non-empty bins, **all of the same weight**: the
          root mean square difference of the two arrays that `calibration_curve` returns, which
          Alrawajfeh et al. (2025, table 3) call RMSE. A bin of a few predictions counts as much as
          one of thousands;
        - ``"max"``: the largest ``|gap|``.

    Returns
    -------
    float
        0 is best. Chance alone makes it positive for calibrated predictions, the more the fewer
        there are; `reliability` gives bands.

    Raises
    ------
    ValueError
        If shapes do not agree, outcomes are not 0 and 1, probabilities are outside [0, 1], or an
        argument is not known.

    References
    ----------
    Alrawajfeh, Jälkö and Honkela (2025), *Noise-aware differentially private variational
    inference*, AISTATS.

    Examples
    --------
    >>> from skdpbayes.calibration import calibration_error
    >>> y_true, proba = [0, 0, 1, 1, 1], [0.1, 0.1, 0.1, 0.9, 0.9]
    >>> round(calibration_error(y_true, proba), 4)  # gaps of 1/3 - 0.1, three times, and of 1 - 0.9, twice
    0.18
    >>> round(calibration_error(y_true, proba, norm="rmse"), 4)
    0.1795
    """
    y_true, proba = check_binary(y_true, proba)
    if norm not in ("l1", "rmse", "max"):
        raise ValueError(f"norm must be 'l1', 'rmse' or 'max', got {norm!r}.")
    _, bins = _bins(proba, n_bins, strategy)
    count = np.bincount(bins)
    filled = count > 0
    gap = np.abs(np.bincount(bins, weights=y_true - proba)[filled] / count[filled])
    if norm == "max":
        return float(gap.max())
    return float(
        np.sqrt((gap**2).mean()) if norm == "rmse" else (count[filled] * gap).sum() / len(proba)
    )


def reliability(
    y_true: Any,
    proba: Any,
    *,
    n_bins: int = 10,
    strategy: str = "uniform",
    confidence: float = 0.95,
) -> Reliability:
    """Compare predicted probabilities with the frequencies that come true, bin by bin.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Outcomes, 0 or 1.
    proba : array-like of shape (n_samples,)
        Predicted probability of the outcome 1.
    n_bins : int, default=10
    strategy : {"uniform", "quantile"}, default="uniform"
        As in `calibration_error`.
    confidence : float, default=0.95
        Of the consistency band.

    Returns
    -------
    Reliability

    Raises
    ------
    ValueError
        As `calibration_error`.

    Notes
    -----
    The band is that of a binomial count whose probability is the bin's mean prediction. If the
    predictions of a bin differ, the count spreads less (its variance is smaller by the sum of
    squared differences), so the band is a little wide, most so with few bins.

    References
    ----------
    Bröcker and Smith (2007), *Increasing the reliability of reliability diagrams*; they resample
    predictions where this takes binomial quantiles.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.calibration import reliability
    >>> found = reliability([0, 0, 1, 0, 1, 1], [0.1, 0.3, 0.3, 0.3, 0.9, 0.8], n_bins=2)
    >>> found.count
    array([4, 2])
    >>> found.observed
    array([0.25, 1.  ])
    """
    y_true, proba = check_binary(y_true, proba)
    confidence = check_open_unit(confidence, "confidence")
    edges, bins = _bins(proba, n_bins, strategy)
    count = np.bincount(bins, minlength=n_bins)
    total = np.where(count > 0, count, np.nan)
    # A mean of equal numbers can leave [0, 1] by rounding.
    predicted = np.clip(np.bincount(bins, weights=proba, minlength=n_bins) / total, 0.0, 1.0)
    observed = np.bincount(bins, weights=y_true, minlength=n_bins) / total
    lower, upper = binomial_band(total, predicted, confidence) / total
    return Reliability(edges, predicted, observed, lower, upper, count, confidence)


def _bins(proba: np.ndarray, n_bins: int, strategy: str) -> tuple[np.ndarray, np.ndarray]:
    """Edges of the bins, and the bin of each prediction."""
    edges = np.linspace(0.0, 1.0, check_count(n_bins, "n_bins") + 1)
    if strategy == "quantile":
        edges = np.quantile(proba, edges)
    elif strategy != "uniform":
        raise ValueError(f"strategy must be 'uniform' or 'quantile', got {strategy!r}.")
    return edges, np.searchsorted(edges[1:-1], proba)
