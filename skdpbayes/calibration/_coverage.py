"""Coverage: how often credible regions hold the truth, beside how often they should."""

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
from skdpbayes.calibration._ranks import tied_ranks
from skdpbayes.calibration._scores import interval_ends

_SIMULATIONS = (
    10_000  # of perfect posteriors, for the band of the RMSE: its ends are then known to 1 to 2 %
)


@dataclass(frozen=True)
class Coverage:
    """Expected coverage of credible regions, beside what right posteriors would show.

    Attributes
    ----------
    levels : array of shape (n_levels,)
        Credibility of the regions.
    coverage : array of shape (n_levels,) or, of marginals, (n_parameters, n_levels)
        Share of the regions that held the truth.
    lower, upper : arrays of shape (n_levels,)
        Pointwise band: between these is, with probability `confidence` or more, the coverage of
        right posteriors with as many replicates (binomial quantiles).
    rmse : float or array of shape (n_parameters,)
        Root mean square of ``coverage - levels`` over the levels.
    rmse_band : tuple of float
        Central interval of probability `confidence` of the `rmse` of one curve of right posteriors.
    n_replicates : int
    confidence : float
        Of both bands.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.calibration import tarp_coverage
    >>> rng = np.random.default_rng(0)
    >>> truth, draws = rng.normal(size=(300, 2)), rng.normal(size=(300, 100, 2))  # the prior is calibrated
    >>> found = tarp_coverage(draws, truth, random_state=0)
    >>> found.coverage.shape == found.levels.shape, found.n_replicates
    (True, 300)
    """

    levels: np.ndarray
    coverage: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    rmse: Any
    rmse_band: tuple[float, float]
    n_replicates: int
    confidence: float

    @property
    def within_band(self) -> Any:
        """Whether `rmse` is not above its band: bool or, of marginals, array of bool of shape (n_parameters,).

        One below the band is luck, or replicates that are not independent. Of many parameters some
        are above by chance.
        """
        within = np.asarray(self.rmse) <= self.rmse_band[1]
        return within if within.ndim else bool(within)


@dataclass(frozen=True)
class MarginalCoverage:
    """Share of equal-tailed credible intervals that held the truth, for each parameter.

    Attributes
    ----------
    level : float
        Probability of the intervals.
    coverage : array of shape (n_parameters,)
    lower, upper : arrays of shape (n_parameters,)
        Clopper-Pearson confidence interval of the probability to hold the truth.
    standard_error : array of shape (n_parameters,)
        Of `coverage`, at the coverage seen: ``sqrt(c (1 - c) / n_replicates)``.
    n_replicates : int
    confidence : float
        Of the Clopper-Pearson interval.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.calibration import marginal_coverage
    >>> rng = np.random.default_rng(0)
    >>> found = marginal_coverage(rng.normal(size=(300, 100, 1)), rng.normal(size=(300, 1)), 0.9)
    >>> bool(found.lower[0] < found.coverage[0] < found.upper[0])
    True
    """

    level: float
    coverage: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    standard_error: np.ndarray
    n_replicates: int
    confidence: float

    @property
    def within_band(self) -> np.ndarray:
        """Whether `level` lies in the confidence interval, for each parameter."""
        return (self.lower <= self.level) & (self.level <= self.upper)


def tarp_coverage(
    draws: Any,
    truth: Any,
    *,
    levels: Any = None,
    marginal: bool = False,
    whiten: Any = True,
    references: Any = None,
    random_state: Any = None,
    confidence: float = 0.95,
) -> Coverage:
    """Test posteriors by the coverage of balls about random points (TARP).

    About a reference point, drawn without looking at the truth of its replicate, the ball that has
    the truth on its surface holds a share of the posterior. If posteriors are right, this share is
    uniform on [0, 1]: the coverage at level a, the fraction of replicates where it is a or less, is
    a. Posteriors that are too narrow have shares near 0 and 1 too often, so coverage is above the
    diagonal at small levels and below it at large ones; those too wide, the other way round. The
    difference is larger at large levels. A shift that is the same in all replicates is seen too,
    but `simulation_based_calibration` is more sensitive to it. The prior passes, as it is
    calibrated: look at `crps` or `interval_width` beside.

    Parameters
    ----------
    draws : array-like of shape (n_replicates, n_draws, n_parameters)
        Posterior draws, from independent replicates.
    truth : array-like of shape (n_replicates, n_parameters)
        The parameters from which the data of each replicate were drawn, themselves drawn from the
        prior. At least three replicates.
    levels : array-like of shape (n_levels,), optional
        Increasing, strictly between 0 and 1; 0.01, 0.02, ..., 0.99 by default.
    marginal : bool, default=False
        Test each parameter by itself, in one dimension, instead of all of them together.
    whiten : bool or array-like of shape (n_parameters,), default=True
        Divide parameters by these scales before distances are taken. True stands for the standard
        deviation of the truths of the **other** replicates. Does not matter for marginals.
    references : "normal", "permute" or array-like of shape (n_replicates, n_parameters), optional
        ``"normal"``, the default, draws each coordinate from the normal distribution that has the
        mean and the standard deviation of the truths of the other replicates; ``"permute"`` takes
        the truth of another replicate. An array must not depend on the truths of the same
        replicates.
    random_state : int, Generator or None
        For reference points and ties. A generator must not be a copy of the one that drew the
        truths.
    confidence : float, default=0.95
        Of the bands.

    Returns
    -------
    Coverage

    Raises
    ------
    ValueError
        If shapes do not agree, a value is not finite, an argument is out of range, or truths do not
        vary: with a fixed truth the test has no prior to be calibrated on.

    Notes
    -----
    With S draws of which r are nearer to the reference than the truth, the share is ``(r + u) / (S
    + 1)``, u uniform on [0, 1], the place among ties random: for right posteriors it is exactly
    uniform, with few draws too. So are the scales and the reference points taken from the other
    replicates, as they must not depend on the truth.

    References
    ----------
    Lemos, Coogan, Hezaveh and Perreault-Levasseur (2023), *Sampling-based accuracy testing of
    posterior estimators for general inference*, ICML, algorithm 2.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.calibration import tarp_coverage
    >>> rng = np.random.default_rng(0)
    >>> mean = rng.normal(size=(300, 2))  # of posteriors with standard deviation 0.5
    >>> truth = mean + 0.5 * rng.normal(size=(300, 2))
    >>> right = mean[:, None] + 0.5 * rng.normal(size=(300, 200, 2))
    >>> narrow = mean[:, None] + 0.25 * rng.normal(size=(300, 200, 2))
    >>> tarp_coverage(right, truth, random_state=0).within_band
    True
    >>> tarp_coverage(narrow, truth, random_state=0).within_band
    False
    """
    draws, truth = check_draws_and_truth(draws, truth, smallest=3)
    levels = _check_levels(levels)
    confidence = check_open_unit(confidence, "confidence")
    rng = generator(random_state)
    mean, std = _others(truth)
    if not (std > 0.0).all():
        raise ValueError(
            "every parameter must vary over the replicates: draw truths from the prior."
        )
    points = _reference_points(references, truth, mean, std, rng)
    scales = _scales(whiten, std)

    n_replicates, n_draws, n_parameters = draws.shape
    ranks = np.empty((n_replicates, n_parameters if marginal else 1))
    for k in range(n_replicates):  # one replicate at a time keeps the copies small
        # The truth goes through the same arithmetic as the draws, so that what is equal stays
        # equal.
        distances = ((np.vstack([truth[k], draws[k]]) - points[k]) / scales[k]) ** 2
        distances = distances if marginal else distances.sum(axis=1, keepdims=True)
        ranks[k] = tied_ranks(distances[1:], distances[0], rng)
    shares = (ranks + rng.random(ranks.shape)) / (n_draws + 1)

    coverage = (
        np.stack([np.searchsorted(np.sort(column), levels, side="right") for column in shares.T])
        / n_replicates
    )
    rmse = np.sqrt(((coverage - levels) ** 2).mean(axis=1))
    lower, upper = binomial_band(n_replicates, levels, confidence)
    return Coverage(
        levels=levels,
        coverage=coverage if marginal else coverage[0],
        lower=lower / n_replicates,
        upper=upper / n_replicates,
        rmse=rmse if marginal else float(rmse[0]),
        rmse_band=rmse_band(n_replicates, levels=levels, confidence=confidence),
        n_replicates=n_replicates,
        confidence=confidence,
    )


def rmse_band(
    n_replicates: int, *, levels: Any = None, n_curves: int = 1, confidence: float = 0.95
) -> tuple[float, float]:
    """Central interval of the root mean square error of coverage that right posteriors score.

    Parameters
    ----------
    n_replicates : int
    levels : array-like of shape (n_levels,), optional
        As in `tarp_coverage`.
    n_curves : int, default=1
        The band is of the mean RMSE of this many **independent** curves. (Those of the parameters
        of one model are not independent in general.)
    confidence : float, default=0.95

    Returns
    -------
    tuple of float
        Lower and upper end, found by simulation with a fixed seed: the same arguments give the same
        band.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> from skdpbayes.calibration import rmse_band
    >>> low, high = rmse_band(500)
    >>> f"{low:.3f} to {high:.3f}"
    '0.008 to 0.034'
    """
    n_replicates, n_curves = (
        check_count(n_replicates, "n_replicates"),
        check_count(n_curves, "n_curves"),
    )
    levels, confidence = _check_levels(levels), check_open_unit(confidence, "confidence")
    shares = np.diff(levels, prepend=0.0, append=1.0)
    rng = np.random.default_rng(20230206)
    scores = np.zeros(_SIMULATIONS)
    for _ in range(
        n_curves
    ):  # how many uniforms fall between levels, without drawing them one by one
        counts = rng.multinomial(n_replicates, shares, size=_SIMULATIONS)[:, :-1].cumsum(axis=1)
        scores += np.sqrt(((counts / n_replicates - levels) ** 2).mean(axis=1))
    low, high = np.quantile(scores / n_curves, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def expected_coverage_error(coverage: Coverage) -> Any:
    """Mean of ``|coverage - levels|`` over the levels.

    Parameters
    ----------
    coverage : Coverage

    Returns
    -------
    float or array of shape (n_parameters,)
        The array for coverage of marginals.

    Raises
    ------
    ValueError
        If `coverage` is not a `Coverage`.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.calibration import expected_coverage_error, tarp_coverage
    >>> rng = np.random.default_rng(0)
    >>> truth, draws = rng.normal(size=(300, 2)), rng.normal(size=(300, 100, 2))
    >>> bool(expected_coverage_error(tarp_coverage(draws, truth, random_state=0)) < 0.1)
    True
    """
    if not isinstance(coverage, Coverage):
        raise ValueError(
            f"coverage must be what tarp_coverage returns, got {type(coverage).__name__}."
        )
    error = np.abs(coverage.coverage - coverage.levels).mean(axis=-1)
    return error if error.ndim else float(error)


def marginal_coverage(
    draws: Any, truth: Any, level: float = 0.9, *, confidence: float = 0.95
) -> MarginalCoverage:
    """Count how often equal-tailed credible intervals hold the truth, for each parameter.

    Parameters
    ----------
    draws : array-like of shape (n_replicates, n_draws, n_parameters)
    truth : array-like of shape (n_replicates, n_parameters)
        Drawn from the prior, or fixed: then right posteriors need not cover with probability
        `level`.
    level : float, default=0.9
        Probability of the intervals; ``2 / (1 - level) - 1`` draws or more are needed.
    confidence : float, default=0.95
        Of the Clopper-Pearson interval.

    Returns
    -------
    MarginalCoverage

    Raises
    ------
    ValueError
        If shapes do not agree, a value is not finite, or there are too few draws for `level`.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.calibration import marginal_coverage
    >>> rng = np.random.default_rng(0)
    >>> truth = rng.normal(size=(300, 1))
    >>> found = marginal_coverage(rng.normal(size=(300, 99, 1)), truth, 0.8)
    >>> bool(found.lower[0] < 0.8 < found.upper[0])
    True
    """
    draws, truth = check_draws_and_truth(draws, truth)
    confidence = check_open_unit(confidence, "confidence")
    n_replicates = len(truth)
    low, high = interval_ends(draws, level)
    held = ((low <= truth) & (truth <= high)).sum(axis=0)
    coverage, tail = held / n_replicates, (1 - confidence) / 2
    missed = n_replicates - held
    # Where the count is 0 or n the beta distribution degenerates, and the end is 0 or 1.
    lower = np.where(held == 0, 0.0, stats.beta.ppf(tail, np.maximum(held, 1), missed + 1))
    upper = np.where(missed == 0, 1.0, stats.beta.ppf(1 - tail, held + 1, np.maximum(missed, 1)))
    error = np.sqrt(coverage * (1 - coverage) / n_replicates)
    return MarginalCoverage(float(level), coverage, lower, upper, error, n_replicates, confidence)


def _check_levels(levels: Any) -> np.ndarray:
    if levels is None:
        return np.arange(1, 100) / 100
    levels = np.asarray(levels, dtype=np.float64)
    if (
        levels.ndim != 1
        or not len(levels)
        or not (np.diff(levels, prepend=0.0, append=1.0) > 0.0).all()
    ):
        raise ValueError("levels must be a vector of increasing numbers strictly between 0 and 1.")
    return levels


def _others(truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the truths of all other replicates, each of the shape of `truth`."""
    n = len(truth)
    centre = truth.mean(axis=0)
    deviation = truth - centre
    squares = (deviation**2).sum(axis=0)
    # Leaving k out moves the mean by -d_k / (n - 1) and takes d_k^2 n / (n - 1) off the sum of
    # squares.
    variance = np.maximum(squares - deviation**2 * n / (n - 1), 0.0) / (n - 2)
    # A sum of squares that is all rounding counts as none.
    variance[variance <= (1e-12 * np.abs(truth).max(axis=0)) ** 2] = 0.0
    return centre - deviation / (n - 1), np.sqrt(variance)


def _reference_points(
    references: Any, truth: np.ndarray, mean: np.ndarray, std: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    if references is None or (isinstance(references, str) and references == "normal"):
        return mean + std * rng.standard_normal(truth.shape)
    if isinstance(references, str):
        if references != "permute":
            raise ValueError(
                f"references must be 'normal', 'permute' or an array, got {references!r}."
            )
        # One cycle through all replicates: nobody gets its own truth, and shares are as good as
        # independent, since each is uniform whatever the truths of those that come after it in the
        # cycle.
        order = rng.permutation(len(truth))
        points = np.empty_like(truth)
        points[order] = truth[np.roll(order, 1)]
        return points
    points = np.asarray(references, dtype=np.float64)
    if points.shape != truth.shape or not np.isfinite(points).all():
        raise ValueError(
            f"references must be finite and have the shape {truth.shape} of truth, got {points.shape}."
        )
    return points


def _scales(whiten: Any, std: np.ndarray) -> np.ndarray:
    if isinstance(whiten, (bool, np.bool_)):
        return std if whiten else np.ones_like(std)
    scales = np.asarray(whiten, dtype=np.float64)
    if scales.shape != std.shape[1:] or not (np.isfinite(scales) & (scales > 0.0)).all():
        raise ValueError(
            f"whiten must be True, False or {std.shape[1]} positive scales, one for each parameter, got {whiten!r}."
        )
    return np.broadcast_to(scales, std.shape)
