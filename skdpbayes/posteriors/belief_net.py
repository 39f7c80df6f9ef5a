"""Posterior of the weights of a sigmoid belief network given noisy sums, in NumPy."""

from __future__ import annotations

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
        for draw in out:
            draw[:, :hidden] = self.weights + (along * rng.standard_normal(along.shape)) @ vectors.T
            noise = rng.standard_normal(visible)
            draw[:, hidden] = self.intercept + noise / np.sqrt(self.weight * self.slope)
        return out.reshape(n, -1)


@dataclass(frozen=True, repr=False)
class ChainWeightsPosterior(WeightsPosterior):
    """As `WeightsPosterior`, with deviations of the weights that a Markov chain took.

    Attributes
    ----------
    chain : array of shape (n_draws, J, K)
        Deviations along the eigenvectors of `spread`, in standard deviations.
    """

    chain: np.ndarray

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws picked at random; intercepts are drawn anew."""
        picked = rng.choice(len(self.chain), n, replace=n > len(self.chain))
        along, vectors = self._eigen()
        visible, hidden = self.weights.shape
        out = np.empty((n, visible, hidden + 1), np.float32)
        for draw, i in zip(out, picked, strict=True):
            draw[:, :hidden] = self.weights + (along * (self.chain[i] @ vectors)) @ vectors.T
            noise = rng.standard_normal(visible)
            draw[:, hidden] = self.intercept + noise / np.sqrt(self.weight * self.slope)
        return out.reshape(n, -1)
