"""Posterior of a Gaussian mixture given noisy sums of its statistics, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skdpbayes.posteriors.base import SampledPosterior

_LEAST = 0.05  # least variance under noise, in units of its estimate


@dataclass(frozen=True, repr=False)
class MixturePosterior(SampledPosterior):
    """Variational posterior with the privacy noise: each draw has fresh noise in its sums.

    A draw has K weights, K means and K covariances, ravelled, in the order of the components.

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
        k, d = self.means.shape
        return f"MixturePosterior({self.kind}, {k} components in {d} dimensions)"

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws, of shape (n, K + K d + K d^2)."""
        weights, means, covariances = self.draws(rng, n)
        return np.concatenate([weights, means.reshape(n, -1), covariances.reshape(n, -1)], axis=1)

    def estimate(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Posterior means of weights and means, and inverse posterior means of precisions."""
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
            [spread, np.broadcast_to(np.sqrt(self.noise[1])[:, None, None] * root, spread.shape)],
            axis=3,
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
            bartlett += np.sqrt(
                rng.chisquare((np.reshape(freedom, (-1, 1)) - np.arange(d)), (n, groups, d))
            )[..., None] * np.eye(d)
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
