"""Normal likelihood of coefficients, and its evidence under independent priors.

Given that releases have known noise, they leave a likelihood of the coefficients t that is normal,

    log p(releases | t) = linear' t - t' information t / 2 + constant.

Its integral over the prior, the evidence, compares priors. It is a function of releases and of
public values, so a comparison costs no budget. For normal priors the integral is closed; for
Student t priors it is that of expectation propagation (Minka 2001), which replaces each prior by a
normal function with the same first moments under the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

_NODES = 300  # of the integral over the precision of a Student t prior
_SWEEPS, _DAMPING, _TOLERANCE = 300, 0.7, 1e-7


Parts = tuple[np.ndarray, np.ndarray, np.ndarray]  # information, linear, reported


@dataclass(frozen=True)
class NormalLikelihood:
    """Likelihood of coefficients, as far as releases tell.

    Attributes
    ----------
    information : array of shape (p, p)
        Positive semi-definite.
    linear : array of shape (p,)
    reported : array of shape (p, p)
        Information by which covariances are reported: that of another estimate of the curvature
        (``docs/solvers/na-dpvi.md``).
    centre : array of shape (p,), optional
        Estimate of the fit, about which the likelihood is quadratic.
    moments : array of shape (p, p), optional
        M such that ``t' M t`` is the mean square of a record's linear predictors.
    averaged : array of shape (p,), optional
        Variances of the coefficients over which the slopes of scores in it are means. None: zero.
    believed : float
        Power of the common scale factor of priors in the fit (`normal_given`).
    by_factor : tuple of three arrays, optional
        The first three attributes under each factor of the prior's common scale, by a first axis
        (`over_common_scales`). They themselves are averages.
    scales : array of shape (p,), optional
        Of the prior of the fit, to which `by_factor` belongs.
    """

    information: np.ndarray
    linear: np.ndarray
    reported: np.ndarray
    centre: np.ndarray | None = None
    moments: np.ndarray | None = None
    averaged: np.ndarray | None = None
    believed: float = 1.0
    by_factor: Parts | None = None
    scales: np.ndarray | None = None

    def mapped(self, axes: ArrayLike) -> NormalLikelihood:
        """Likelihood of ``axes @ coefficients``."""
        axes = np.asarray(axes, np.float64)
        back = np.linalg.inv(axes)

        def changed(parts: Parts) -> Parts:
            information, linear, reported = parts
            return back.T @ information @ back, linear @ back, back.T @ reported @ back

        return NormalLikelihood(
            *changed((self.information, self.linear, self.reported)),
            None if self.centre is None else axes @ self.centre,
            believed=self.believed,
            by_factor=None if self.by_factor is None else changed(self.by_factor),
            scales=self.scales,
        )

    def moved(self, mean: np.ndarray) -> float:
        """Root mean square by which linear predictors at `mean` differ from those of the fit.

        Zero where that is unknown.
        """
        if self.centre is None or self.moments is None:
            return 0.0
        away = mean - self.centre
        return float(np.sqrt(away @ self.moments @ away))

    def among(self, kept: np.ndarray) -> NormalLikelihood:
        """Likelihood of the coefficients in a mask, given that the others are zero."""

        def changed(parts: Parts) -> Parts:
            information, linear, reported = parts
            rows, columns = np.ix_(kept, kept)
            return information[..., rows, columns], linear[..., kept], reported[..., rows, columns]

        information, linear, reported = changed((self.information, self.linear, self.reported))
        return replace(
            self,
            information=information,
            linear=linear,
            reported=reported,
            centre=None,
            moments=None,
            averaged=None,
            by_factor=None if self.by_factor is None else changed(self.by_factor),
            scales=None if self.scales is None else self.scales[kept],
        )


class Priors(NamedTuple):
    """Independent priors with mean zero.

    Attributes
    ----------
    scale : array of shape (p,)
        Standard deviations, or scales of Student t priors.
    df : array of shape (p,)
        Degrees of freedom; infinite for normal priors.
    """

    scale: np.ndarray
    df: np.ndarray

    def among(self, kept: np.ndarray) -> Priors:
        """Priors of the coefficients in a mask."""
        return Priors(self.scale[kept], self.df[kept])


class Evidence(NamedTuple):
    """Result of `evidence`.

    Attributes
    ----------
    mean : array of shape (p,)
        Of the posterior.
    log : float
        Log evidence, where the likelihood of zero coefficients is one.
    without : array of shape (p,)
        Gain of the log evidence if one coefficient is zero (the density at zero of its posterior
        over that of its prior: Dickey 1971).
    """

    mean: np.ndarray
    log: float
    without: np.ndarray


def evidence(likelihood: NormalLikelihood, priors: Priors) -> Evidence:
    """Evidence of priors.

    Parameters
    ----------
    likelihood : NormalLikelihood
    priors : Priors
    """
    heavy = np.isfinite(priors.df)
    site_precision, site_linear = priors.scale**-2.0, np.zeros(len(priors.scale))
    last = np.inf
    for _ in range(_SWEEPS):
        precision = likelihood.information + np.diag(site_precision)
        covariance, linear = np.linalg.inv(precision), likelihood.linear + site_linear
        mean, variance = covariance @ linear, np.diag(covariance)
        # Posterior of each coefficient without its own prior, or nearly flat.
        left = np.maximum(1 / variance - site_precision, 1e-12 * priors.scale**-2.0)
        centre, spread = (mean / variance - site_linear) / left, 1 / left
        tilted = _tilted(centre, spread, priors)
        # The normal function in the place of a prior has its integral times the others'.
        log_sites = tilted.log - _log_normal_integral(
            site_precision + left, site_linear + left * centre
        )
        log_sites += _log_normal_integral(left, left * centre)
        log = float(np.sum(log_sites) + linear @ mean / 2)
        log += float(len(mean) * np.log(2 * np.pi) - np.linalg.slogdet(precision)[1]) / 2
        if not heavy.any() or abs(log - last) < _TOLERANCE * (1 + abs(log)):
            break
        last = log
        wanted = np.maximum(1 / tilted.variance - left, 1e-9 * priors.scale**-2.0)
        wanted_linear = (left + wanted) * tilted.mean - left * centre
        site_precision = np.where(
            heavy, site_precision + _DAMPING * (wanted - site_precision), site_precision
        )
        site_linear = np.where(
            heavy, site_linear + _DAMPING * (wanted_linear - site_linear), site_linear
        )
    at_zero = -(centre**2 / spread + np.log(2 * np.pi * spread)) / 2
    return Evidence(mean, log, at_zero - tilted.log)


def _log_normal_integral(precision: np.ndarray, linear: np.ndarray) -> np.ndarray:
    """Log integrals of ``exp(linear t - precision t^2 / 2)``."""
    return (linear**2 / precision + np.log(2 * np.pi / precision)) / 2


class _Tilted(NamedTuple):
    """Log integrals of priors times normal densities, and the moments of these products."""

    log: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


def _tilted(centre: np.ndarray, spread: np.ndarray, priors: Priors) -> _Tilted:
    """Products with normal densities of mean `centre` and variance `spread`.

    A Student t prior is a normal prior whose precision, times its squared scale, has a gamma
    distribution of mean one: an integral over the logarithm of that factor.
    """
    heavy = np.isfinite(priors.df)
    df, square = np.where(heavy, priors.df, 1.0)[:, None], (priors.scale**2)[:, None]
    # The factor given a coefficient has a gamma distribution; the range holds all of them.
    largest = (np.abs(centre) + 8 * np.sqrt(spread))[:, None] ** 2 / square
    width = 10 * np.sqrt(2 / df)
    low, high = np.log((df + 1) / (df + largest)) - width, np.log1p(1 / df) + width
    step = (high - low) / (_NODES - 1)
    log_factor = low + step * np.arange(_NODES)
    half = df / 2
    log_weight = half * (log_factor - np.exp(log_factor)) + half * np.log(half)
    log_weight += np.log(step) - special.gammaln(half)
    # One node, of factor one, for a normal prior.
    only = np.arange(_NODES) == 0
    log_factor = np.where(heavy[:, None], log_factor, 0.0)
    log_weight = np.where(heavy[:, None], log_weight, np.where(only, 0.0, -np.inf))
    own = square * np.exp(-log_factor)
    total = own + spread[:, None]
    log_density = log_weight - (centre[:, None] ** 2 / total + np.log(2 * np.pi * total)) / 2
    log = special.logsumexp(log_density, axis=1)
    weight = np.exp(log_density - log[:, None])
    shrink = own / total
    mean = np.sum(weight * shrink, axis=1) * centre
    away = shrink * centre[:, None] - mean[:, None]
    variance = np.sum(weight * (shrink * spread[:, None] + away**2), axis=1)
    return _Tilted(log, mean, variance)
