"""Coordinates of a Gaussian mixture about a start, and posteriors in them, in NumPy.

In units of the start each component is about a standard normal distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, special

from skdpbayes.posteriors.base import MappedPosterior


class Coordinates(NamedTuple):
    """Parameters of a mixture relative to a start, each array with any leading axes."""

    log_ratio: Any  # (K - 1,): logarithms of weights by orthonormal contrasts
    mean: Any  # (K, d): in units of the start's component, from its mean
    log_scale: Any  # (groups, scales)
    lower: Any  # (groups, d (d - 1) / 2), or (groups, 0) where covariances are diagonal


def contrasts(k: int) -> np.ndarray:
    """Orthonormal contrasts (K - 1, K), all orthogonal to the constant vector."""
    return linalg.helmert(k).astype(np.float32)


def shapes(kind: str, k: int, d: int) -> Coordinates:
    """Shape of each of the `Coordinates`."""
    groups, scales = 1 if kind == "tied" else k, 1 if kind == "spherical" else d
    below = d * (d - 1) // 2 if kind in ("full", "tied") else 0
    return Coordinates((k - 1,), (k, d), (groups, scales), (groups, below))


def whitening(kind, k, d, params, xp):
    """Factors (..., K, d, d) that whiten a component in units of its start; log scales (K, d).

    Parameters
    ----------
    params : Coordinates
    xp : module
        numpy or jax.numpy.
    """
    log_scale = xp.broadcast_to(params.log_scale, (*params.log_scale.shape[:-2], k, d))
    factor = xp.exp(-log_scale)[..., None] * np.eye(d, dtype=np.float32)
    if params.lower.shape[-1]:
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
        Means and Cholesky factors of the covariances of the start.
    """

    kind: str
    means: np.ndarray
    roots: np.ndarray

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Weights, means and covariances, of shape (n, K + K d + K d^2)."""
        (k, d), n = self.means.shape, len(rows)
        of = shapes(self.kind, k, d)
        parts = np.split(rows, np.cumsum([math.prod(shape) for shape in of])[:-1], axis=1)
        params = Coordinates(
            *(part.reshape(n, *shape) for part, shape in zip(parts, of, strict=True))
        )
        factor, _ = whitening(self.kind, k, d, params, np)
        means = self.means + np.einsum("kij,nkj->nki", self.roots, params.mean)
        roots = self.roots @ np.linalg.inv(factor)
        weights = special.softmax(params.log_ratio @ contrasts(k), axis=1)
        return np.concatenate(
            [weights, means.reshape(n, -1), (roots @ np.swapaxes(roots, 2, 3)).reshape(n, -1)], 1
        )


class MarginalPosterior(MappedPosterior):
    """Posterior of weights, means and covariances, from a posterior of `Coordinates`."""

    function: MixtureCoordinates

    def estimate(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights, means and covariances at the mean of the coordinates."""
        k, d = self.function.means.shape
        weights, means, covariances = np.split(
            self.function(self.posterior.mean[None])[0], [k, k + k * d]
        )
        return weights, means.reshape(k, d), covariances.reshape(k, d, d)
