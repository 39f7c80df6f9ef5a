"""Coverage: how often credible regions contain the truth."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal, TypeAlias

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
from skdpbayes.calibration._ranks import tied_ranks
from skdpbayes.calibration._scores import interval_ends

References: TypeAlias = Literal["normal", "permute"] | ArrayLike

# Simulated curves of exact posteriors: they give the ends of the RMSE's band to 1 or 2 percent.
_SIMULATIONS = 10_000


@dataclass(frozen=True)
class Coverage:
    """Coverage of credible regions, and the band of exact posteriors.

    Attributes
    ----------
    levels : array of shape (n_levels,)
        Credibility of the regions.
    coverage : array of shape (n_levels,) or, of marginals, (n_parameters, n_levels)
        Share of the regions that contain the truth.
    lower, upper : arrays of shape (n_levels,)
        Pointwise band (binomial quantiles): with as many replicates, the coverage of exact
        posteriors lies in it with probability `confidence` or more.
    rmse : float or array of shape (n_parameters,)
        Root mean square of ``coverage - levels`` over the levels.
    rmse_band : tuple of float
        Central interval of the `rmse` of one curve of exact posteriors.
    n_replicates : int
    confidence : float
        Probability of both bands.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.calibration import tarp_coverage
    >>> rng = np.random.default_rng(0)
    >>> # The prior is calibrated.
    >>> truth, draws = rng.normal(size=(300, 2)), rng.normal(size=(300, 100, 2))
    >>> found = tarp_coverage(draws, truth, random_state=0)
    >>> found.coverage.shape == found.levels.shape, found.n_replicates
    (True, 300)
    """

    levels: Floats
    coverage: Floats
    lower: Floats
    upper: Floats
    rmse: float | Floats
    rmse_band: tuple[float, float]
    n_replicates: int
    confidence: float

    @property
    def error(self) -> float | Floats:
        """Expected coverage error: mean of ``|coverage - levels|`` over the levels."""
        error = np.abs(self.coverage - self.levels).mean(axis=-1)
        return error if error.ndim else float(error)

    @property
    def within_band(self) -> bool | NDArray[np.bool_]:
        """Whether `rmse` is not above its band; for marginals, one value for each parameter.

        An RMSE below the band is chance, or a sign of dependent replicates. Among many parameters
        some are above by chance.
        """
        within = np.asarray(self.rmse) <= self.rmse_band[1]
        return within if within.ndim else bool(within)


@dataclass(frozen=True)
class MarginalCoverage:
    """Share of equal-tailed credible intervals that contain the truth, for each parameter.

    Attributes
    ----------
    level : float
        Probability of the intervals.
    coverage : array of shape (n_parameters,)
    lower, upper : arrays of shape (n_parameters,)
        Clopper-Pearson confidence interval of the coverage probability.
    standard_error : array of shape (n_parameters,)
        Estimated standard error of `coverage` c: ``sqrt(c (1 - c) / n_replicates)``.
    n_replicates : int
    confidence : float
        Confidence of the Clopper-Pearson interval.

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
    coverage: Floats
    lower: Floats
    upper: Floats
    standard_error: Floats
    n_replicates: int
    confidence: float

    @property
    def within_band(self) -> NDArray[np.bool_]:
        """Whether `level` lies in the confidence interval, for each parameter."""
        return (self.lower <= self.level) & (self.level <= self.upper)


def tarp_coverage(
    draws: ArrayLike,
    truth: ArrayLike,
    *,
    levels: ArrayLike | None = None,
    marginal: bool = False,
    whiten: bool | ArrayLike = True,
    references: References | None = None,
    random_state: RandomState = None,
    confidence: float = 0.95,
) -> Coverage:
    """Test posteriors by the coverage of balls around random points (TARP).

    Each replicate has a reference point, drawn independently of its truth. The ball around it with
    the truth on its surface contains some share of the posterior. If posteriors are exact, this
    share is uniform on [0, 1], so the coverage at level a (the fraction of replicates where the
    share is at most a) is a. If posteriors are too narrow, shares near 0 and 1 are too frequent:
    coverage is above the diagonal at small levels and below it at large ones. If they are too wide,
    it is the other way round. The difference is larger at large levels. The test also detects a
    shift that is the same in all replicates, but `simulation_based_calibration` is more sensitive
    to it. The prior is calibrated, so it passes: compare `crps` or `interval_width` as well.

    Parameters
    ----------
    draws : array-like of shape (n_replicates, n_draws, n_parameters)
        Posterior draws, from independent replicates.
    truth : array-like of shape (n_replicates, n_parameters)
        Parameters, drawn from the prior, that generated the data of each replicate. At least three
        replicates.
    levels : array-like of shape (n_levels,), optional
        Increasing, strictly between 0 and 1; 0.01, 0.02, ..., 0.99 by default.
    marginal : bool, default=False
        Test each parameter separately instead of all together.
    whiten : bool or array-like of shape (n_parameters,), default=True
        Scales by which parameters are divided before distances are computed. True takes the
        standard deviation of the truths of the **other** replicates. Ignored for marginals.
    references : "normal", "permute" or array-like of shape (n_replicates, n_parameters), optional
        ``"normal"``, the default, draws each coordinate from a normal distribution with the mean
        and standard deviation of the truths of the other replicates. ``"permute"`` takes the truth
        of another replicate. An array must not depend on the truths of the same replicates.
    random_state : int, Generator or None
        For reference points and ties. A generator must not be a copy of the one that drew the
        truths.
    confidence : float, default=0.95
        Probability of the bands.

    Returns
    -------
    Coverage

    Raises
    ------
    ValueError
        If shapes do not agree, a value is not finite, an argument is out of range, or truths do not
        vary: the test needs truths drawn from the prior.

    Notes
    -----
    If r of S draws are nearer to the reference point than the truth, the share is ``(r + u) / (S +
    1)`` with u uniform on [0, 1]; ties are broken at random. For exact posteriors it is exactly
    uniform, however few draws there are. This requires scales and reference points that do not
    depend on the truth, so both come from the other replicates.

    References
    ----------
    Lemos, Coogan, Hezaveh and Perreault-Levasseur (2023), *Sampling-based accuracy testing of
    posterior estimators for general inference*, ICML, algorithm 2.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.calibration import tarp_coverage
    >>> rng = np.random.default_rng(0)
    >>> mean = rng.normal(size=(300, 2))  # posterior means; the standard deviation is 0.5
    >>> truth = mean + 0.5 * rng.normal(size=(300, 2))
    >>> exact = mean[:, None] + 0.5 * rng.normal(size=(300, 200, 2))
    >>> narrow = mean[:, None] + 0.25 * rng.normal(size=(300, 200, 2))
    >>> tarp_coverage(exact, truth, random_state=0).within_band
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
        # Truth and draws go through the same arithmetic, so that ties remain ties.
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
    n_replicates: int,
    *,
    levels: ArrayLike | None = None,
    n_curves: int = 1,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Central interval of the root mean square error of coverage of exact posteriors.

    Parameters
    ----------
    n_replicates : int
    levels : array-like of shape (n_levels,), optional
        As in `tarp_coverage`.
    n_curves : int, default=1
        The band is for the mean RMSE of this many **independent** curves. (Curves of the parameters
        of one model are generally dependent.)
    confidence : float, default=0.95

    Returns
    -------
    tuple of float
        Lower and upper end, simulated with a fixed seed: the same arguments give the same band.

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
    n_replicates = check_count(n_replicates, "n_replicates")
    n_curves = check_count(n_curves, "n_curves")
    levels, confidence = _check_levels(levels), check_open_unit(confidence, "confidence")
    shares = np.diff(levels, prepend=0.0, append=1.0)
    rng = np.random.default_rng(20230206)
    scores = np.zeros(_SIMULATIONS)
    for _ in range(n_curves):
        # The number of uniforms between consecutive levels, drawn at once.
        counts = rng.multinomial(n_replicates, shares, size=_SIMULATIONS)[:, :-1].cumsum(axis=1)
        scores += np.sqrt(((counts / n_replicates - levels) ** 2).mean(axis=1))
    low, high = np.quantile(scores / n_curves, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def expected_coverage_error(coverage: Coverage) -> float | Floats:
    """Mean of ``|coverage - levels|``; deprecated: take ``coverage.error``.

    Raises
    ------
    ValueError
        If `coverage` is not a `Coverage`.
    """
    warnings.warn(
        "expected_coverage_error(coverage) will go in the next release: take coverage.error.",
        FutureWarning,
        stacklevel=2,
    )
    if not isinstance(coverage, Coverage):
        raise ValueError(
            f"coverage must be what tarp_coverage returns, got {type(coverage).__name__}."
        )
    return coverage.error


def marginal_coverage(
    draws: ArrayLike, truth: ArrayLike, level: float = 0.9, *, confidence: float = 0.95
) -> MarginalCoverage:
    """Count how often equal-tailed credible intervals contain the truth, for each parameter.

    Parameters
    ----------
    draws : array-like of shape (n_replicates, n_draws, n_parameters)
    truth : array-like of shape (n_replicates, n_parameters)
        Drawn from the prior. It may be fixed, but then exact posteriors need not cover it with
        probability `level`.
    level : float, default=0.9
        Probability of the intervals; ``2 / (1 - level) - 1`` draws or more are needed.
    confidence : float, default=0.95
        Confidence of the Clopper-Pearson interval.

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
    # If the count is 0 or n, the beta distribution degenerates, and the end is 0 or 1.
    lower = np.where(held == 0, 0.0, stats.beta.ppf(tail, np.maximum(held, 1), missed + 1))
    upper = np.where(missed == 0, 1.0, stats.beta.ppf(1 - tail, held + 1, np.maximum(missed, 1)))
    error = np.sqrt(coverage * (1 - coverage) / n_replicates)
    return MarginalCoverage(float(level), coverage, lower, upper, error, n_replicates, confidence)


def _check_levels(levels: ArrayLike | None) -> Floats:
    if levels is None:
        return np.arange(1, 100) / 100
    levels = np.asarray(levels, dtype=np.float64)
    vector = levels.ndim == 1 and len(levels) > 0
    if not vector or not (np.diff(levels, prepend=0.0, append=1.0) > 0.0).all():
        raise ValueError("levels must be a vector of increasing numbers strictly between 0 and 1.")
    return levels


def _others(truth: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of the truths of all other replicates, for each replicate."""
    n = len(truth)
    centre = truth.mean(axis=0)
    deviation = truth - centre
    squares = (deviation**2).sum(axis=0)
    # Without replicate k the mean is lower by d_k / (n - 1), and the sum of squares by
    # d_k^2 n / (n - 1).
    variance = np.maximum(squares - deviation**2 * n / (n - 1), 0.0) / (n - 2)
    # A sum of squares that consists of rounding errors counts as zero.
    variance[variance <= (1e-12 * np.abs(truth).max(axis=0)) ** 2] = 0.0
    return centre - deviation / (n - 1), np.sqrt(variance)


def _reference_points(
    references: References | None,
    truth: Floats,
    mean: Floats,
    std: Floats,
    rng: np.random.Generator,
) -> Floats:
    if references is None or (isinstance(references, str) and references == "normal"):
        return mean + std * rng.standard_normal(truth.shape)
    if isinstance(references, str):
        if references != "permute":
            raise ValueError(
                f"references must be 'normal', 'permute' or an array, got {references!r}."
            )
        # One cycle through all replicates: none gets its own truth. Shares behave as independent
        # ones, since each is uniform given the truths that come after it in the cycle.
        order = rng.permutation(len(truth))
        points = np.empty_like(truth)
        points[order] = truth[np.roll(order, 1)]
        return points
    points = np.asarray(references, dtype=np.float64)
    if points.shape != truth.shape or not np.isfinite(points).all():
        raise ValueError(
            f"references must be finite and have the shape {truth.shape} of truth, got "
            f"{points.shape}."
        )
    return points


def _scales(whiten: bool | ArrayLike, std: Floats) -> Floats:
    if isinstance(whiten, (bool, np.bool_)):
        return std if whiten else np.ones_like(std)
    scales = np.asarray(whiten, dtype=np.float64)
    if scales.shape != std.shape[1:] or not (np.isfinite(scales) & (scales > 0.0)).all():
        raise ValueError(
            f"whiten must be True, False or {std.shape[1]} positive scales, one for each "
            f"parameter, got {whiten!r}."
        )
    return np.broadcast_to(scales, std.shape)
