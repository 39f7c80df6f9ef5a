"""Ranks of truths among posterior draws, and their histogram (simulation-based calibration)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from skdpbayes.calibration._check import (
    binomial_band,
    check_count,
    check_draws_and_truth,
    check_open_unit,
    generator,
)


@dataclass(frozen=True)
class RankHistogram:
    """Ranks of truths among draws, counted, beside what right posteriors give.

    Attributes
    ----------
    ranks : array of int, shape (n_replicates, n_parameters)
        Number of draws below the truth, from 0 to `n_draws`.
    n_draws : int
    edges : array of int, shape (n_bins + 1,)
        Bin b holds the ranks from ``edges[b]`` to ``edges[b + 1] - 1``.
    counts : array of int, shape (n_parameters, n_bins)
    expected : array of shape (n_bins,)
        Mean counts under right posteriors; they differ where the bins do not hold equally many
        ranks.
    lower, upper : arrays of shape (n_bins,)
        Pointwise band of the counts: binomial quantiles.
    p_value : array of shape (n_parameters,)
        Of the chi-square test of uniform ranks.
    confidence : float
        Of the band.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.calibration import simulation_based_calibration
    >>> rng = np.random.default_rng(0)
    >>> found = simulation_based_calibration(rng.normal(size=(300, 99, 1)), rng.normal(size=(300, 1)))
    >>> int(found.counts.sum()), found.n_draws
    (300, 99)
    """

    ranks: np.ndarray
    n_draws: int
    edges: np.ndarray
    counts: np.ndarray
    expected: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    p_value: np.ndarray
    confidence: float


def tied_ranks(values: np.ndarray, truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Number of values (along axis 0) below the truth; a truth tied with some takes a random place among them.

    If the truth and the n values are exchangeable, this is uniform on 0, ..., n, ties or not.
    """
    below, tied = (values < truth).sum(axis=0), (values == truth).sum(axis=0)
    return below + rng.integers(0, tied + 1)


def simulation_based_calibration(
    draws: Any,
    truth: Any,
    bins: int | None = None,
    *,
    confidence: float = 0.95,
    random_state: Any = None,
) -> RankHistogram:
    """Rank each truth among the draws of its posterior (simulation-based calibration).

    If truths come from the prior, data from the model, and draws are independent draws of the right
    posterior, every rank is uniform on 0, ..., n_draws. A histogram in the shape of a U means that
    posteriors are too narrow, of a hill that they are too wide, a slope that they are shifted.

    Parameters
    ----------
    draws : array-like of shape (n_replicates, n_draws, n_parameters)
        Posterior draws. Draws of a Markov chain should be thinned first: ranks among correlated
        draws are not uniform.
    truth : array-like of shape (n_replicates, n_parameters)
        The parameters from which the data of each replicate were drawn.
    bins : int, optional
        Number of bins, at most n_draws + 1. By default about one for 20 replicates, from 2 to 20.
    confidence : float, default=0.95
        Of the band of each count.
    random_state : int, Generator or None
        Orders a truth among draws that equal it; not used without ties.

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
    >>> mean = rng.normal(size=(400, 1))  # of posteriors with standard deviation 1
    >>> truth = mean + rng.normal(size=(400, 1))
    >>> right = mean[:, None] + rng.normal(size=(400, 99, 1))
    >>> narrow = mean[:, None] + 0.5 * rng.normal(size=(400, 99, 1))
    >>> bool(simulation_based_calibration(right, truth).p_value[0] > 0.01)
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
