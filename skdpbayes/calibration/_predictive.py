"""Predicted probabilities beside observed frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skdpbayes.calibration._check import (
    Floats,
    binomial_band,
    check_binary,
    check_count,
    check_open_unit,
)

Strategy: TypeAlias = Literal["uniform", "quantile"]


@dataclass(frozen=True)
class Reliability:
    """Predicted probabilities and observed frequencies, in bins.

    Attributes
    ----------
    edges : array of shape (n_bins + 1,)
        Bin b holds the predictions in ``(edges[b], edges[b + 1]]``; the first bin includes its
        lower edge.
    predicted : array of shape (n_bins,)
        Mean predicted probability; this and the next three are NaN in empty bins.
    observed : array of shape (n_bins,)
        Fraction of outcomes that are 1.
    lower, upper : arrays of shape (n_bins,)
        Consistency band: if predictions are calibrated, `observed` lies in it with probability
        `confidence` or more.
    count : array of int, shape (n_bins,)
        Number of predictions.
    confidence : float
        Probability of the band, for each bin separately.

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

    edges: Floats
    predicted: Floats
    observed: Floats
    lower: Floats
    upper: Floats
    count: NDArray[np.int64]
    confidence: float


def calibration_error(
    y_true: ArrayLike,
    proba: ArrayLike,
    *,
    n_bins: int = 10,
    strategy: Strategy = "uniform",
    norm: Literal["l1", "rmse", "max"] = "l1",
) -> float:
    """Distance between predicted probabilities and observed frequencies, over bins.

    In bin b let ``gap`` be the fraction of outcomes that are 1 minus the mean predicted
    probability, and ``n_b`` the number of predictions; empty bins are left out.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Outcomes, 0 or 1.
    proba : array-like of shape (n_samples,)
        Predicted probability of the outcome 1.
    n_bins : int, default=10
    strategy : {"uniform", "quantile"}, default="uniform"
        Bins of equal width on [0, 1], or of about equal numbers of predictions. Edges and bins are
        those of scikit-learn's `calibration_curve`.
    norm : {"l1", "rmse", "max"}, default="l1"
        - ``"l1"``: sum over bins of ``n_b / n_samples * |gap|``, the usual expected calibration
          error;
        - ``"rmse"``: ``sqrt(mean(gap^2))`` over non-empty bins, **all with the same weight**: the
          root mean square difference of the two arrays that `calibration_curve` returns, which
          Alrawajfeh et al. (2025, table 3) call RMSE. A bin with a few predictions counts as much
          as one with thousands;
        - ``"max"``: the largest ``|gap|``.

    Returns
    -------
    float
        0 is best. For calibrated predictions it is positive by chance, more so if they are few;
        `reliability` gives bands.

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
    >>> round(calibration_error(y_true, proba), 4)  # three gaps of 1/3 - 0.1, two of 1 - 0.9
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
    y_true: ArrayLike,
    proba: ArrayLike,
    *,
    n_bins: int = 10,
    strategy: Strategy = "uniform",
    confidence: float = 0.95,
) -> Reliability:
    """Compare predicted probabilities with observed frequencies, bin by bin.

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


def _bins(proba: Floats, n_bins: int, strategy: Strategy) -> tuple[Floats, NDArray[np.int64]]:
    """Edges of the bins, and the bin of each prediction."""
    edges = np.linspace(0.0, 1.0, check_count(n_bins, "n_bins") + 1)
    if strategy == "quantile":
        edges = np.quantile(proba, edges)
    elif strategy != "uniform":
        raise ValueError(f"strategy must be 'uniform' or 'quantile', got {strategy!r}.")
    return edges, np.searchsorted(edges[1:-1], proba)
