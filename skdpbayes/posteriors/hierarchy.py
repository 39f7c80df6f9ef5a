"""Posterior of a hierarchy whose spreads are learnt: a mixture of normal posteriors over them.

Given hyper-parameters h (spreads, say), the values u that records tell of are ``c(h) + G(h) z``,
with z standard normal. If the likelihood of u is normal, with information L and linear term l, then
the posterior of z given h is normal with precision ``K = I + G'LG`` and mean ``K^-1 b``, where
``b = G'(l - Lc)``, and the evidence of h is

    log p(releases | h) = l'c - c'Lc / 2 - log det(K) / 2 + b'K^-1 b / 2.

Where records tell of a function of u instead, as scores that saturate do, it is linear about the
mean of u given h (`linearised`).

The posterior of h is not normal: spreads are skewed, and may be zero. Adaptive importance sampling
finds it (Cornuet, Marin, Mira and Robert 2012). All this is a function of releases and of public
values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats
from scipy.linalg import qr, solve_triangular

from skdpbayes.posteriors.base import GaussianPosterior, SampledPosterior
from skdpbayes.posteriors.evidence import NormalLikelihood

Array = NDArray[np.float64]

_ROUNDS = 6
_MOST_HALVINGS = 20  # of the logarithms of weights
_OF_A_ROUND = 100  # draws of hyper-parameters, for each of them
_WIDE, _SHARE = 2.0, 0.2  # standard deviation of wide proposals, and their share in later rounds
_DEGREES, _INFLATED = 4.0, 1.3  # degrees of freedom and variance of the others
_ERROR = 0.02  # variance of means where there is no information, in that of the prior
_LARGE = 1e10  # trace beside which rounding takes the identity
_SWEEPS, _ARRIVED = 100, 0.001  # of a linear approximation
_FEWEST_NODES, _MOST_NODES, _MOST_ENTRIES = 20, 200, 4_000_000


class Levels(NamedTuple):
    """Values that records tell of, ``centre + slope z``, given each of n hyper-parameters.

    Attributes
    ----------
    centre : array of shape (n, m)
    slope : array of shape (n, m, q)
    log_prior : array of shape (n,)
        Log density of the hyper-parameters, up to a constant.
    """

    centre: Array
    slope: Array
    log_prior: Array


def likelihood_of(posterior: GaussianPosterior) -> NormalLikelihood:
    """What records tell of values whose posterior under a standard normal prior is given."""
    precision = np.linalg.inv(posterior.covariance)
    values, vectors = np.linalg.eigh(precision - np.eye(len(precision)))
    values = values.clip(0)
    # A mean where there is no information is an error of the solver, and no sign of a wide prior.
    along = precision @ posterior.mean @ vectors * values / (values + _ERROR)
    information = (vectors * values) @ vectors.T
    return NormalLikelihood(information, vectors @ along, information)


def given(
    told: NormalLikelihood, centre: Array, slope: Array
) -> tuple[Array, NDArray[np.floating], float]:
    """Mean of z given hyper-parameters, Cholesky factor of its precision, and evidence."""
    root = _root(told.information, slope)
    pull = told.information @ centre
    half = solve_triangular(root, slope.T @ (told.linear - pull), lower=True)
    log = centre @ (told.linear - pull / 2) + half @ half / 2
    mean = solve_triangular(root, half, lower=True, trans="T")
    return mean, root, float(log - np.log(np.diag(root)).sum())


def _root(information: Array, slope: Array) -> NDArray[np.floating]:
    """Lower Cholesky factor of ``I + slope' information slope``."""
    size = slope.shape[1]
    product = slope.T @ information @ slope
    if np.trace(product) < _LARGE:
        root: NDArray[np.floating] = np.linalg.cholesky(np.eye(size) + product)
        return root
    # Rounding would take the identity from the sum: by factors, which takes three times as long.
    values, vectors = np.linalg.eigh(information)
    half = (np.sqrt(values.clip(0)) * vectors).T @ slope
    upper: Array = qr(np.vstack([half, np.eye(size)]), mode="r")[0][:size]
    return (upper * np.where(np.diag(upper) < 0, -1.0, 1.0)[:, None]).T


@dataclass(frozen=True, repr=False)
class HierarchyPosterior(SampledPosterior):
    """Mixture of normal posteriors, one for each of n equally probable hyper-parameters.

    Attributes
    ----------
    hyper : array of shape (n, k)
    means : array of shape (n, q)
        Of z.
    roots : array of shape (n, q, q)
        Lower Cholesky factors of the precisions of z.
    order : array of shape (k + q,)
        Place of each parameter among hyper-parameters and z.
    """

    hyper: Array
    means: Array
    roots: Array
    order: NDArray[np.int64]

    def __repr__(self) -> str:
        k = self.hyper.shape[1]
        return f"HierarchyPosterior({len(self.order)} parameters, {k} of them hyper-parameters)"

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws, of shape (n, n_parameters)."""
        nodes = (rng.permutation(n) + rng.integers(len(self.hyper))) % len(self.hyper)
        noise = rng.standard_normal((n, self.means.shape[1]))
        z = np.empty_like(noise)
        for node in np.unique(nodes):
            own = nodes == node
            away = solve_triangular(self.roots[node], noise[own].T, lower=True, trans="T")
            z[own] = self.means[node] + away.T
        return np.concatenate([self.hyper[nodes], z], axis=1)[:, self.order]


def with_hyper_parameters(
    told: NormalLikelihood,
    levels: Callable[[Array], Levels],
    n_hyper: int,
    order: NDArray[np.int64],
) -> HierarchyPosterior:
    """Posterior with hyper-parameters, given what records tell of other values.

    Parameters
    ----------
    told : NormalLikelihood
    levels : callable
        From hyper-parameters, of shape (n, k). Their priors are about standard normal.
    n_hyper : int
    order : array
        As in `HierarchyPosterior`.
    """

    def every(at: Levels) -> list[tuple[Array, NDArray[np.floating], float]]:
        return [given(told, c, g) for c, g in zip(at.centre, at.slope, strict=True)]

    def log_density(hyper: Array) -> Array:
        at = levels(hyper)
        return at.log_prior + np.array([log for _, _, log in every(at)])

    n = int(np.clip(_MOST_ENTRIES // len(order) ** 2, _FEWEST_NODES, _MOST_NODES))
    hyper = _draws(log_density, n_hyper, n)
    at = levels(hyper)
    means, roots, _ = (np.array(x) for x in zip(*every(at), strict=True))
    if told.reported is not told.information:
        roots = np.array([_root(told.reported, slope) for slope in at.slope])
    return HierarchyPosterior(hyper, means, roots, order)


def linearised(
    told: NormalLikelihood, at: Levels, tell: Callable[[Array, Array], tuple[Array, Array]]
) -> tuple[Array, Array]:
    """What records tell of, where it is a function of the values, about their means.

    Parameters
    ----------
    told : NormalLikelihood
        Of that function.
    at : Levels
        Values, given each of n neighbouring hyper-parameters.
    tell : callable
        The mean of the function by coordinate, and its mean slope, given the means and the
        variances of the values, all of shape (m,).

    Returns
    -------
    offset, slope : arrays of shape (n, m)
        The function is ``offset + slope * u``, where u has its posterior.
    """
    offset, slope = np.zeros(at.centre.shape[1]), np.ones(at.centre.shape[1])
    found = []
    for centre, matrix in zip(at.centre, at.slope, strict=True):
        for _ in range(_SWEEPS):
            z, root, _ = given(told, offset + slope * centre, slope[:, None] * matrix)
            mean = centre + matrix @ z
            variance = np.square(solve_triangular(root, matrix.T, lower=True)).sum(axis=0)
            value, new = tell(mean, variance)
            before = np.append(offset, slope)
            # Whole steps may oscillate.
            offset, slope = (offset + value - new * mean) / 2, (slope + new) / 2
            if np.allclose(np.append(offset, slope), before, rtol=_ARRIVED, atol=_ARRIVED):
                break
        found.append((offset, slope))
    offsets, slopes = (np.array(x) for x in zip(*found, strict=True))
    return offsets, slopes


def _draws(log_density: Callable[[Array], Array], k: int, n: int) -> Array:
    """Draws of a density in k dimensions, of shape (n, k), by adaptive importance sampling.

    The first round proposes from a wide normal law, later ones from a mixture of it and of a
    Student t law with the moments of all earlier points. Weights are over the mean of all
    proposals.
    """
    rng = np.random.default_rng(0)
    wide = stats.multivariate_normal(np.zeros(k), _WIDE**2 * np.eye(k))
    size = _OF_A_ROUND * k
    points = wide.rvs(size, rng).reshape(size, k)
    logs, laws, shares = log_density(points), [wide], [1.0]
    for _ in range(_ROUNDS - 1):
        weight = _weights(logs, points, laws, shares, 10 * k)
        mean = weight @ points
        away = points - mean
        spread = _INFLATED * (away * weight[:, None]).T @ away + 1e-9 * np.eye(k)
        near = stats.multivariate_t(mean, spread, df=_DEGREES, seed=rng)
        both = (wide.rvs(size, rng), near.rvs(size))
        from_wide = rng.random(size) < _SHARE
        new = np.where(from_wide[:, None], *(x.reshape(size, k) for x in both))
        points, logs = np.concatenate([points, new]), np.append(logs, log_density(new))
        laws, shares = [*laws, near], [*shares, 1 - _SHARE]
        shares[0] += _SHARE
    order = np.lexsort(points.T)
    cumulated = np.cumsum(_weights(logs, points, laws, shares)[order])
    at = np.searchsorted(cumulated, (np.arange(n) + 0.5) / n)  # systematic resampling
    return points[order[np.minimum(at, len(order) - 1)]]


class _Law(Protocol):
    """Law that points are drawn from."""

    def logpdf(self, x: Array) -> Array:
        """Log densities."""


def _weights(
    logs: Array, points: Array, laws: list[_Law], shares: list[float], least: float = 1.0
) -> Array:
    """Importance weights, of sum one.

    They are taken to a power at which they are worth at least `least` equal ones: fewer points
    would have no spread.
    """
    proposed = [law.logpdf(points) for law in laws]
    log = logs - special.logsumexp(proposed, axis=0, b=np.array(shares)[:, None])
    log = np.where(np.isfinite(log), log, -np.inf)
    for halvings in range(_MOST_HALVINGS):
        weights: Array = special.softmax(log / 2**halvings)
        if 1 / np.square(weights).sum() >= least:
            break
    return weights
