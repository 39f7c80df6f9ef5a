"""Posterior of the weights of a sigmoid belief network given noisy sums, in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from skdpbayes.posteriors.base import IndependentDraws


@dataclass(frozen=True, repr=False)
class WeightsPosterior(IndependentDraws):
    """Normal posterior of weights and intercepts, with the privacy noise to first order.

    Logits of the visible units are ``intercept + weights (z - active)``. Draws are J rows of K
    weights and an intercept, ravelled.

    Attributes
    ----------
    weights : array of shape (J, K)
    intercept : array of shape (J,)
    active : array of shape (K,)
        Probabilities of the hidden units.
    slope : array of shape (J,)
        Mean curvature of a record's log-likelihood in the logit of each visible unit.
    spread : array of shape (K, K)
        Covariance of the hidden units over records.
    noise : float
        Standard deviation of the noise in an entry of the covariance of visible and hidden units.
    weight : float
        Sum of the weights of the records.
    visible, visible_std : arrays of shape (J,)
        Probabilities of the visible units, and their standard deviations with the privacy noise.
    """

    weights: np.ndarray
    intercept: np.ndarray
    active: np.ndarray
    slope: np.ndarray
    spread: np.ndarray
    noise: float
    weight: float
    visible: np.ndarray
    visible_std: np.ndarray

    def __repr__(self) -> str:
        visible, hidden = self.weights.shape
        return f"WeightsPosterior({visible} visible and {hidden} hidden units)"

    @property
    def mean(self) -> np.ndarray:
        """Mean of each parameter."""
        return np.concatenate([self.weights, self.intercept[:, None]], axis=1).ravel()

    def _eigen(self):
        """Standard deviations of weights along the eigenvectors of `spread`, (J, K); these."""
        values, vectors = np.linalg.eigh(self.spread)
        slope = self.slope[:, None]
        return np.sqrt(
            1 / (self.weight * slope * values) + (self.noise / (slope * values)) ** 2
        ), vectors

    @property
    def std(self) -> np.ndarray:
        """Not available: raises an `AttributeError` with the reason."""
        raise AttributeError(
            "The weights of a belief network have no std: hidden units have no order, and other "
            "fits end at other optima, which a posterior about one of them leaves out. Use "
            "visible_interval for the probabilities of visible units."
        )

    @property
    def local_std(self) -> np.ndarray:
        """Standard deviation of each parameter about this optimum alone: far too small for all."""
        along, vectors = self._eigen()
        weights = np.sqrt(along**2 @ (vectors**2).T)
        return np.concatenate(
            [weights, 1 / np.sqrt(self.weight * self.slope)[:, None]], axis=1
        ).ravel()

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws, of shape (n, J (K + 1)), in single precision."""
        along, vectors = self._eigen()
        visible, hidden = self.weights.shape
        out = np.empty((n, visible, hidden + 1), np.float32)
        for draw, away in zip(out, self._standardised(rng, n, vectors), strict=True):
            draw[:, :hidden] = self.weights + (along * away) @ vectors.T
            noise = rng.standard_normal(visible)
            draw[:, hidden] = self.intercept + noise / np.sqrt(self.weight * self.slope)
        return out.reshape(n, -1)

    def _standardised(
        self, rng: np.random.Generator, n: int, vectors: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Deviations of the weights along `vectors` in n draws, in standard deviations, (J, K)."""
        del vectors
        for _ in range(n):
            yield rng.standard_normal(self.weights.shape)


@dataclass(frozen=True, repr=False)
class ChainWeightsPosterior(WeightsPosterior):
    """As `WeightsPosterior`, with deviations of the weights that a Markov chain took.

    Draws are picked at random; intercepts are drawn anew.

    Attributes
    ----------
    chain : array of shape (n_draws, J, K)
        Deviations, in standard deviations.
    """

    chain: np.ndarray

    def _standardised(
        self, rng: np.random.Generator, n: int, vectors: np.ndarray
    ) -> Iterator[np.ndarray]:
        for i in rng.choice(len(self.chain), n, replace=n > len(self.chain)):
            yield self.chain[i] @ vectors
