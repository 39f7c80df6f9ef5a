"""Ranks of truths among posterior draws, and their histogram (simulation-based calibration)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from skdpbayes.calibration._check import (
    Floats,
    RandomState,
    binomial_band,
    check_count,
    check_draws_and_truth,
    check_open_unit,
    generator,
)


@dataclass(frozen=True)
class RankHistogram:
    """Histogram of the ranks of truths among draws, and the band of exact posteriors.

    Attributes
    ----------
    ranks : array of int, shape (n_replicates, n_parameters)
        Number of draws below the truth, from 0 to `n_draws`.
    n_draws : int
    edges : array of int, shape (n_bins + 1,)
        Bin b holds the ranks from ``edges[b]`` to ``edges[b + 1] - 1``.
    counts : array of int, shape (n_parameters, n_bins)
    expected : array of shape (n_bins,)
        Expected counts for exact posteriors; they differ if bins hold unequal numbers of ranks.
    lower, upper : arrays of shape (n_bins,)
        Pointwise band of the counts: binomial quantiles.
    p_value : array of shape (n_parameters,)
        Of the chi-square test of uniform ranks.
    confidence : float
        Probability of the band.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.calibration import simulation_based_calibration
    >>> rng = np.random.default_rng(0)
    >>> truth, draws = rng.normal(size=(300, 1)), rng.normal(size=(300, 99, 1))
    >>> found = simulation_based_calibration(draws, truth)
    >>> int(found.counts.sum()), found.n_draws
    (300, 99)
    """

    ranks: NDArray[np.int64]
    n_draws: int
    edges: NDArray[np.int64]
    counts: NDArray[np.int64]
    expected: Floats
    lower: Floats
    upper: Floats
    p_value: Floats
    confidence: float


def tied_ranks(values: Floats, truth: Floats, rng: np.random.Generator) -> NDArray[np.int64]:
    """Number of values (along axis 0) below the truth; ties are broken at random.

    If the truth and the n values are exchangeable, this is uniform on 0, ..., n, with ties or
    without.
    """
    below, tied = (values < truth).sum(axis=0), (values == truth).sum(axis=0)
    return below + rng.integers(0, tied + 1)


def simulation_based_calibration(
    draws: ArrayLike,
    truth: ArrayLike,
    bins: int | None = None,
    *,
    confidence: float = 0.95,
    random_state: RandomState = None,
) -> RankHistogram:
    """Rank each truth among the draws of its posterior (simulation-based calibration).

    If truths come from the prior, data from the model, and draws are independent draws of the exact
    posterior, every rank is uniform on 0, ..., n_draws. A U-shaped histogram means that posteriors
    are too narrow, a hump that they are too wide, and a slope that they are shifted.

    Parameters
    ----------
    draws : array-like of shape (n_replicates, n_draws, n_parameters)
        Posterior draws. Thin the draws of a Markov chain first: ranks among correlated draws are
        not uniform.
    truth : array-like of shape (n_replicates, n_parameters)
        Parameters that generated the data of each replicate.
    bins : int, optional
        Number of bins, at most n_draws + 1. By default one for 20 replicates, from 2 to 20.
    confidence : float, default=0.95
        Probability of the band of each count.
    random_state : int, Generator or None
        Breaks ties between truths and draws.

    Returns
    -------
    RankHistogram

    Raises
    ------
    ValueError
        If shapes do not agree, a value is not finite, or an argument is out of range.

    References
    ----------
    Talts, Betancourt, Simpson, Vehtari and Gelman (2018), *Validating Bayesian inference algorithms
    with simulation-based calibration*, algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.calibration import simulation_based_calibration
    >>> rng = np.random.default_rng(0)
    >>> mean = rng.normal(size=(400, 1))  # posterior means; the standard deviation is 1
    >>> truth = mean + rng.normal(size=(400, 1))
    >>> exact = mean[:, None] + rng.normal(size=(400, 99, 1))
    >>> narrow = mean[:, None] + 0.5 * rng.normal(size=(400, 99, 1))
    >>> bool(simulation_based_calibration(exact, truth).p_value[0] > 0.01)
    True
    >>> bool(simulation_based_calibration(narrow, truth).p_value[0] < 1e-6)
    True
    """
    draws, truth = check_draws_and_truth(draws, truth)
    confidence = check_open_unit(confidence, "confidence")
    n_replicates, n_draws, n_parameters = draws.shape
    if bins is None:
        bins = min(max(n_replicates // 20, 2), 20, n_draws + 1)
    bins = check_count(bins, "bins", 2)
    if bins > n_draws + 1:
        raise ValueError(
            f"bins must be at most n_draws + 1 = {n_draws + 1}, the number of ranks, got {bins}."
        )
    rng = generator(random_state)
    ranks = np.stack([tied_ranks(*pair, rng) for pair in zip(draws, truth, strict=True)])
    edges = np.round(np.linspace(0, n_draws + 1, bins + 1)).astype(int)
    counts = np.stack([np.histogram(ranks[:, j], edges - 0.5)[0] for j in range(n_parameters)])
    share = np.diff(edges) / (n_draws + 1)
    expected = n_replicates * share
    lower, upper = binomial_band(n_replicates, share, confidence)
    p_value = stats.chi2.sf(((counts - expected) ** 2 / expected).sum(axis=1), bins - 1)
    return RankHistogram(ranks, n_draws, edges, counts, expected, lower, upper, p_value, confidence)
