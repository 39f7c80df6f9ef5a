"""Posterior of linear regression given noisy sums of products of its records.

The releases are ``G = sum x x'``, ``t = sum x y`` and ``q = sum y^2``, with independent normal
noise. Given coefficients w and noise variance s2, the residuals of the releases,

    r = t - G w,    h = q - 2 w't + w'G w - n s2,

have sampling noise, ``N(0, s2 G)`` and ``N(0, 2 n s2^2)``, and privacy noise, whose covariance
depends on w through G. Both are normal, so the density of (r, h) has a closed form: true sums are
integrated out. Bernstein and Sheldon (2019) draw them in a Gibbs sampler instead. Given the
release, the true G is shrunk towards a multiple of the identity (`_shrunk`) and has no negative
eigenvalues (`_positive`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from skdpbayes.posteriors.base import DrawsPosterior, SampledPosterior

# Chains and draws of each; more chains for many coefficients.
_CHAINS, _KEPT = 128, 32
_LARGEST = 60.0  # |log variance|


class Prior(NamedTuple):
    """``w | s2 ~ N(0, s2 / precision)``, ``s2 ~ InverseGamma(shape, scale)``."""

    precision: float
    shape: float
    scale: float


class Moments(NamedTuple):
    """Noisy sums over weighted records, and the standard deviations of their noise.

    Attributes
    ----------
    gram : array of shape (p, p)
        Symmetric; the noise of entries off the diagonal has half the variance.
    cross : array of shape (p,)
    square, weight : float
        The last is the sum of the weights.
    n_records : int
        Or the largest number that there can be.
    noise : tuple of float
        Standard deviation of the noise in an entry of the four, in this order.
    row_norm : float
        Rows longer than this have the weight ``row_norm^2 / |x|^2``, others one.
    """

    gram: np.ndarray
    cross: np.ndarray
    square: float
    weight: float
    n_records: int
    noise: tuple[float, float, float, float]
    row_norm: float = math.inf

    @property
    def least_weight(self) -> float:
        """Sum of weights below which the noisy one is not believed."""
        return min(0.01 * self.n_records, max(3 * self.noise[3], 1.0))

    @property
    def mean_weight(self) -> float:
        """Mean weight of a record that is not null, or more.

        The trace of `gram` is ``row_norm^2`` for every record that is shortened, and less for
        others.
        """
        trace = max(float(np.trace(self.gram)), 1e-30)
        return min(max(self.weight, self.least_weight) * self.row_norm**2 / trace, 1.0)


@dataclass(frozen=True, repr=False)
class NormalInverseGamma(SampledPosterior):
    """Posterior of (log s2, w) without noise.

    ``w | s2 ~ N(centre, s2 / precision)``, ``s2 ~ InverseGamma(shape, scale)``.

    Attributes
    ----------
    centre : array of shape (p,)
    precision : array of shape (p, p)
    shape, scale : float
    """

    centre: np.ndarray
    precision: np.ndarray
    shape: float
    scale: float

    def __repr__(self) -> str:
        return f"NormalInverseGamma({len(self.centre)} coefficients)"

    @property
    def mean(self) -> np.ndarray:
        """Mean of (log s2, w)."""
        return np.append(math.log(self.scale) - special.digamma(self.shape), self.centre)

    @property
    def covariance(self) -> np.ndarray:
        """Covariance of (log s2, w); infinite in w for a shape of at most 1."""
        out = np.zeros((len(self.centre) + 1,) * 2)
        variance = self.scale / (self.shape - 1) if self.shape > 1 else math.inf
        out[0, 0], out[1:, 1:] = (
            special.polygamma(1, self.shape),
            variance * np.linalg.inv(self.precision),
        )
        return out

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of each of (log s2, w)."""
        return np.sqrt(np.diag(self.covariance))

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws, of shape (n, p + 1)."""
        variance = self.scale / rng.standard_gamma(self.shape, (n, 1))
        root = np.linalg.inv(np.linalg.cholesky(self.precision))
        noise = rng.standard_normal((n, len(self.centre))) @ root
        return np.concatenate([np.log(variance), self.centre + np.sqrt(variance) * noise], axis=1)

    def mapped(self, axes: ArrayLike, offset: ArrayLike) -> NormalInverseGamma:
        """Posterior of ``axes @ (log s2, w) + offset``.

        The first row and the first column of `axes` are those of the identity: another unit of the
        response is an offset of the log variance.
        """
        axes, offset = np.asarray(axes, np.float64)[1:, 1:], np.asarray(offset, np.float64)
        square, back = math.exp(offset[0]), np.linalg.inv(axes)
        precision = square * back.T @ self.precision @ back
        return NormalInverseGamma(
            axes @ self.centre + offset[1:], precision, self.shape, square * self.scale
        )


def moments_posterior(
    moments: Moments, prior: Prior, *, intercept: bool
) -> NormalInverseGamma | DrawsPosterior:
    """Posterior of (log s2, w): exact without noise, else draws given the noisy sums.

    Parameters
    ----------
    moments : Moments
    prior : Prior
    intercept : bool
        Whether the last column is constant.
    """
    if moments.noise[0] == 0:
        precision = moments.gram + prior.precision * np.eye(len(moments.cross))
        centre = np.linalg.solve(precision, moments.cross)
        residual = max(moments.square - centre @ moments.cross, 0)
        return NormalInverseGamma(
            centre, precision, prior.shape + moments.weight / 2, prior.scale + residual / 2
        )
    gram, spreads, weight = _shrunk(moments, intercept)
    values, vectors = _positive(gram, math.sqrt(spreads.inner))
    last = vectors[-1] if intercept else np.zeros(len(values))
    density = _Density(values, last, spreads, vectors.T @ moments.cross, weight, moments, prior)
    draws = _ensemble(density, *density.start())
    return DrawsPosterior(np.concatenate([draws[..., :1], draws[..., 1:] @ vectors.T], axis=-1))


class _Spreads(NamedTuple):
    """Posterior variances of the true Gram matrix's diagonal; other entries have half of them."""

    inner: float  # of features
    border: float  # of features with the intercept


def _shrunk(moments, intercept):
    """Posterior mean and variances of the true Gram matrix, and the sum of the weights.

    Sums of squares of features are shrunk to their mean; products of two features and sums of
    features to zero. The intercept's row, the longest, has a factor of its own. Its square is the
    sum of weights.
    """
    gram, noise, n = moments.gram.copy(), moments.noise[0] ** 2, moments.n_records
    weight = min(max(moments.weight, moments.least_weight), n)
    d = len(gram) - intercept
    inner, spread = gram[:d, :d], _Spreads(noise, noise)
    target = max(np.trace(inner) / max(d, 1), 0) * np.eye(d)
    kept, variance = _kept(np.sum((inner - target) ** 2), d * (d + 1) // 2 - 1, noise)
    gram[:d, :d], spread = target + kept * (inner - target), spread._replace(inner=variance)
    if intercept:
        kept, variance = _kept(2 * np.sum(gram[-1, :d] ** 2), d, noise)
        gram[-1, :d], gram[:d, -1], gram[-1, -1] = kept * gram[-1, :d], kept * gram[:d, -1], weight
        spread = spread._replace(border=variance)
    return gram, spread, weight


def _kept(size, entries, noise):
    """Posterior mean of normal variables as a share of their observations, and their variance.

    Variables from N(0, v) are observed with noise. Under a flat prior on its logarithm, the share
    lost, ``noise / (v + noise)``, has a gamma distribution truncated at 1 (Strawderman 1971).

    Parameters
    ----------
    size : float
        Sum of the squares of the observations.
    entries : int
    noise : float
        Variance of the noise.
    """
    if entries == 0 or size == 0:
        return 1.0, noise
    lost, spread = _cut_gamma(entries / 2, size / (2 * noise))
    return 1 - lost, min(noise * (1 - lost) + spread * size / entries, noise)


def _cut_gamma(shape, rate):
    """Mean and variance of a gamma distribution truncated at 1."""
    mass = special.gammainc(shape + np.arange(3), rate)
    if mass[0] < 1e-250:
        return 1.0, 0.0
    mean, square = (
        shape / rate * mass[1] / mass[0],
        shape * (shape + 1) / rate**2 * mass[2] / mass[0],
    )
    return mean, max(square - mean**2, 0)


def _positive(gram, sd):
    """Eigenvalues moved to means of normals truncated to positive values; eigenvectors."""
    values, vectors = np.linalg.eigh(gram)
    z = values / sd
    # Density over distribution function.
    hazard = math.sqrt(2 / math.pi) / special.erfcx(-z / math.sqrt(2))
    return np.maximum(values + sd * hazard, 1e-12 * sd), vectors


@dataclass(frozen=True)
class _Density:
    """Log posterior density of (log s2, w), w in the basis of the eigenvectors of the Gram matrix.

    Attributes
    ----------
    values, last : arrays of shape (p,)
        Eigenvalues; the unit vector of the intercept, zero without one.
    spreads : _Spreads
    cross : array of shape (p,)
    weight : float
    moments : Moments
    prior : Prior
    """

    values: np.ndarray
    last: np.ndarray
    spreads: _Spreads
    cross: np.ndarray
    weight: float
    moments: Moments
    prior: Prior

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Log density at points of shape (m, p + 1)."""
        log_variance, w = np.clip(points[:, 0], -_LARGEST, _LARGEST), points[:, 1:]
        s2, length, at_last = np.exp(log_variance), _dot(w, w), w @ self.last
        _, cross_sd, square_sd, weight_sd = self.moments.noise
        own, more, sampling = self._variances(s2, length, at_last)
        slope = self.spreads.inner / 2
        # Covariance of r: diag(own) + more last last' + slope w w', inverted by two updates of
        # Sherman and Morrison.
        r = self.cross - self.values * w
        joint = (
            -(2 * cross_sd**2 + 2 * slope * length)[:, None] * w
            - (more * at_last)[:, None] * self.last
        )
        through = self.last / own
        first = 1 / (1 + more * (through @ self.last))

        def solved(v):
            return v / own - (more * first * _dot(through, v))[:, None] * through

        along = solved(w)
        second = 1 / (1 + slope * _dot(along, w))
        inverse_r = solved(r) - (slope * second * _dot(along, r))[:, None] * along
        inverse_joint = solved(joint) - (slope * second * _dot(along, joint))[:, None] * along
        # Conditional density of h given r.
        h = (
            self.moments.square
            - 2 * w @ self.cross
            + w**2 @ self.values
            - s2 * self.weight
            - _dot(joint, inverse_r)
        )
        variance = sampling + square_sd**2 + s2**2 * weight_sd**2
        variance += 4 * length * cross_sd**2 + 2 * slope * length**2 + more * at_last**2
        left = np.maximum(variance - _dot(joint, inverse_joint), 1e-12 * variance)
        log_det = np.sum(np.log(own), axis=1) - np.log(first) - np.log(second) + np.log(left)
        log_prior = -(self.prior.shape + len(self.values) / 2) * log_variance
        log_prior -= (self.prior.scale + self.prior.precision * length / 2) / s2
        return log_prior - (log_det + _dot(r, inverse_r) + h**2 / left) / 2

    def _variances(self, s2, length, at_last):
        """Variances of r by eigenvector, excess of the intercept, and sampling variance of h."""
        _, cross_sd, _, weight_sd = self.moments.noise
        # With weights k, sum k^2 x x' is approximated by share * sum k x x'.
        share = self.moments.mean_weight
        slope, border = self.spreads.inner / 2, self.spreads.border / 2
        own = s2[:, None] * share * self.values + (cross_sd**2 + slope * length)[:, None]
        features = np.maximum(length - at_last**2, 0)
        more = border * features + weight_sd**2 * at_last**2 - slope * (length + at_last**2)
        return own, np.maximum(more, -slope * features), 2 * s2**2 * share * self.weight

    def start(self):
        """Point near the mode and the spread about it, by iterated weighted least squares."""
        w, s2 = np.zeros(len(self.values)), self.prior.scale / (self.prior.shape + 1)
        log_variance = np.linspace(min(math.log(s2) - 10, -23), max(math.log(s2) + 10, 5), 400)
        for _ in range(20):
            own = self._variances(np.array([s2]), np.array([w @ w]), w @ self.last)[0][0]
            precision = self.values**2 / own + self.prior.precision / s2
            w = self.values * self.cross / own / precision
            log = self(np.column_stack([log_variance, np.tile(w, (len(log_variance), 1))]))
            mass = np.exp(log - log.max()) / np.sum(np.exp(log - log.max()))
            s2 = math.exp(log_variance[np.argmax(log)])
        centre = mass @ log_variance
        spread = math.sqrt(mass @ (log_variance - centre) ** 2 + 1e-4)
        return np.append(centre, w), np.append(spread, precision**-0.5)


def _dot(a, b):
    """Inner products of rows."""
    return np.einsum("ij,ij->i", a, b)


def _ensemble(log_density: Callable[[np.ndarray], np.ndarray], centre, spread) -> np.ndarray:
    """Draws of shape (chains, draws, dimension) by random-walk Metropolis, many chains at once.

    Proposals have the covariance of all chains, adapted in the first half. The generator is fixed,
    so that the draws are a function of the density.
    """
    rng, size = np.random.default_rng(0), len(centre)
    chains = max(_CHAINS, 2 * size)  # enough for a covariance of full rank
    points = centre + spread * rng.standard_normal((chains, size))
    height, root, kept = log_density(points), np.diag(spread), []
    every = max(10, size)
    for step in range(2 * _KEPT * every):
        if step < _KEPT * every and step % 40 == 39:
            root = np.linalg.cholesky(
                np.cov(points.T) + 1e-9 * np.diag(points.var(axis=0) + 1e-300)
            )
        length = 2 / math.sqrt(size) * math.exp(0.5 * rng.standard_normal())
        moved = points + length * rng.standard_normal(points.shape) @ root.T
        new = log_density(moved)
        # A density of NaN is rejected.
        taken = np.log(rng.random(chains)) < new - height
        points, height = np.where(taken[:, None], moved, points), np.where(taken, new, height)
        if step >= _KEPT * every and step % every == every - 1:
            kept.append(points)
    return np.stack(kept, axis=1)
