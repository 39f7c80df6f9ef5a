"""Posteriors of a Gaussian mixture, in NumPy: given noisy sums of its statistics, or in coordinates about a start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, special

from skdpbayes.posteriors import MappedPosterior, SampledPosterior

_LEAST = 0.05  # of a variance that noise is added to, in units of its estimate


@dataclass(frozen=True, repr=False)
class MixturePosterior(SampledPosterior):
    """Variational posterior with what privacy adds: each draw comes of sums from which fresh noise is taken off.

    A draw is made of K weights, K means and K covariances, ravelled; the components keep their places.

    Attributes
    ----------
    kind : {"full", "tied", "diag", "spherical"}
    prior_concentration : float
    concentration, precision, freedom, means, covariances, noise
        As in `MixtureParams`.
    """

    kind: str
    prior_concentration: float
    concentration: np.ndarray
    precision: np.ndarray
    freedom: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    noise: np.ndarray

    def __repr__(self) -> str:
        return f"MixturePosterior({self.kind}, {len(self.means)} components in {self.means.shape[1]} dimensions)"

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws, of shape (n, K + K d + K d^2)."""
        weights, means, covariances = self.draws(rng, n)
        return np.concatenate([weights, means.reshape(n, -1), covariances.reshape(n, -1)], axis=1)

    def estimate(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights, means and covariances: posterior means, and the inverse of that of precisions."""
        return self.concentration / self.concentration.sum(), self.means, self.covariances

    def draws(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights (n, K), means (n, K, d) and covariances (n, K, d, d)."""
        k, d = self.means.shape
        counts = self.concentration + np.sqrt(self.noise[0]) * rng.standard_normal((n, k))
        gammas = rng.standard_gamma(np.maximum(counts, self.prior_concentration))
        weights = (gammas + 1e-300) / (gammas + 1e-300).sum(axis=1, keepdims=True)
        root = np.linalg.cholesky(self.covariances)
        covariances = self._covariances(rng, n, root)
        spread = np.linalg.cholesky(covariances) / np.sqrt(self.precision)[:, None, None]
        spread = np.concatenate(
            [spread, np.broadcast_to(np.sqrt(self.noise[1])[:, None, None] * root, spread.shape)], axis=3
        )
        means = self.means + np.einsum("nkij,nkj->nki", spread, rng.standard_normal((n, k, 2 * d)))
        return weights, means, covariances

    def _covariances(self, rng, n, root):
        k, d = self.means.shape
        groups = 1 if self.kind == "tied" else k
        error = np.sqrt(self.noise[2][:groups])[:, None, None]
        normal = rng.standard_normal((n, groups, d, d))
        if self.kind in ("full", "tied"):
            freedom = self.freedom.sum() if self.kind == "tied" else self.freedom
            change = (normal + np.swapaxes(normal, 2, 3)) / np.sqrt(2)
            bartlett = np.tril(rng.standard_normal((n, groups, d, d)), -1)
            bartlett += np.sqrt(rng.chisquare((np.reshape(freedom, (-1, 1)) - np.arange(d)), (n, groups, d)))[
                ..., None
            ] * np.eye(d)
            factor = np.linalg.inv(bartlett)
            drawn = np.swapaxes(factor, 2, 3) @ factor * np.reshape(freedom, (-1, 1, 1))
        else:
            size = d if self.kind == "diag" else 1
            freedom = self.freedom[:, None] * (1 if self.kind == "diag" else d)
            change = np.eye(d) * np.diagonal(normal, axis1=2, axis2=3)[..., :size, None]
            drawn = np.eye(d) * (freedom / rng.chisquare(freedom, (n, k, size)))[..., None]
        values, vectors = np.linalg.eigh(np.eye(d) + error * change)
        half = vectors * np.sqrt(np.maximum(values, _LEAST))[..., None, :]
        outer = root @ half
        covariances = outer @ drawn @ np.swapaxes(outer, 2, 3)
        return np.broadcast_to(covariances, (n, k, d, d)).copy()


class Coordinates(NamedTuple):
    """Parameters of a mixture relative to a start, each array with any leading axes."""

    log_ratio: Any  # (K - 1,): logarithms of weights by orthonormal contrasts
    mean: Any  # (K, d): in units of the start's component, from its mean
    log_scale: Any  # (groups, scales)
    lower: Any  # (groups, d (d - 1) / 2), or (groups, 0) where covariances are diagonal


def contrasts(k):
    """Orthonormal contrasts (K - 1, K), of which no one is about the sum."""
    return linalg.helmert(k).astype(np.float32)


def groups(kind, k, d):
    """Number of covariances that there are of a type, and of scales that each has."""
    return 1 if kind == "tied" else k, 1 if kind == "spherical" else d


def whitening(kind, k, d, params, xp):
    """Factors (..., K, d, d) that turn a component, in units of its start, into a standard normal; log scales (K, d).

    Parameters
    ----------
    params : Coordinates
    xp : module
        numpy or jax.numpy.
    """
    log_scale = xp.broadcast_to(params.log_scale, (*params.log_scale.shape[:-2], k, d))
    factor = xp.exp(-log_scale)[..., None] * np.eye(d, dtype=np.float32)
    if kind in ("full", "tied"):
        rows, columns = np.tril_indices(d, -1)
        place = np.zeros((len(rows), d, d), np.float32)
        place[np.arange(len(rows)), rows, columns] = 1
        factor = factor + xp.einsum("...gl,lij->...gij", params.lower, place)
    return factor, log_scale


@dataclass(frozen=True)
class MixtureCoordinates:
    """Turns `Coordinates`, as rows of a matrix, into weights, means and covariances, ravelled.

    Attributes
    ----------
    kind : {"full", "tied", "diag", "spherical"}
    means, roots : arrays of shapes (K, d) and (K, d, d)
        Of the start; roots are Cholesky factors of its covariances.
    """

    kind: str
    means: np.ndarray
    roots: np.ndarray

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Weights, means and covariances, of shape (n, K + K d + K d^2)."""
        (k, d), n = self.means.shape, len(rows)
        size, scales = groups(self.kind, k, d)
        parts = np.split(rows, np.cumsum([k - 1, k * d, size * scales]), axis=1)
        shapes = (k - 1,), (k, d), (size, scales), (size, parts[3].shape[1] // size)
        params = Coordinates(*(part.reshape(n, *shape) for part, shape in zip(parts, shapes, strict=True)))
        factor, _ = whitening(self.kind, k, d, params, np)
        means = self.means + np.einsum("kij,nkj->nki", self.roots, params.mean)
        roots = self.roots @ np.linalg.inv(factor)
        weights = special.softmax(params.log_ratio @ contrasts(k), axis=1)
        return np.concatenate([weights, means.reshape(n, -1), (roots @ np.swapaxes(roots, 2, 3)).reshape(n, -1)], 1)


class MarginalPosterior(MappedPosterior):
    """Posterior of `Coordinates`, and what it says of weights, means and covariances."""

    function: MixtureCoordinates

    def estimate(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights, means and covariances at the mean of the coordinates."""
        k, d = self.function.means.shape
        weights, means, covariances = np.split(self.function(self.posterior.mean[None])[0], [k, k + k * d])
        return weights, means.reshape(k, d), covariances.reshape(k, d, d)
