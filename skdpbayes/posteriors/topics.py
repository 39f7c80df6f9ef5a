"""Posterior of topics given noisy counts of their words, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from skdpbayes.posteriors.base import DrawsPosterior, IndependentDraws

# Standard deviation of a ratio about a point of the grid, in units of the gap to the next.
BETWEEN = 0.5


@dataclass(frozen=True, repr=False)
class TopicsPosterior(IndependentDraws):
    """Dirichlet distributions over words, one per topic, given noisy counts.

    A count is its expectation times a ratio with a prior on a grid (`skdpbayes.models.lda.shrunk`),
    seen with normal noise. Draws are K distributions over V words, ravelled.

    Attributes
    ----------
    prior : float
        Concentration of the Dirichlet prior.
    counts : array of shape (K, V)
        Their posterior mean.
    seen, expected : arrays of shape (K, V)
        Released counts, and their expectations, in units of `scales`.
    scales : array of shape (V,)
    noise : float or array of shape (K, V)
        Standard deviation of the noise in `seen`; 0 without noise.
    grid, probabilities : arrays
        Prior of the ratios.
    """

    prior: float
    counts: np.ndarray
    seen: np.ndarray
    expected: np.ndarray
    scales: np.ndarray
    noise: np.ndarray | float
    grid: np.ndarray
    probabilities: np.ndarray

    def __repr__(self) -> str:
        return f"TopicsPosterior({len(self.counts)} topics of {self.counts.shape[1]} words)"

    @property
    def components(self) -> np.ndarray:
        """Parameters of the Dirichlet distributions at the posterior mean of the counts, (K, V)."""
        return self.counts + self.prior

    @property
    def mean(self) -> np.ndarray:
        """Mean of each topic's distribution, ravelled, given the posterior mean of the counts."""
        concentration = self.components
        return (concentration / concentration.sum(axis=1, keepdims=True)).ravel()

    @cached_property
    def std(self) -> np.ndarray:
        """Standard deviation of each probability, of 200 draws."""
        return self.sample(np.random.default_rng(0), 200).std(axis=0)

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws, of shape (n, K V), in single precision."""
        out = np.empty((n, *self.counts.shape), np.float32)
        for k in range(len(self.counts)):
            concentration = self._counts(rng, n, k) * self.scales + self.prior
            weights = rng.standard_gamma(concentration)
            out[:, k] = weights / weights.sum(axis=1, keepdims=True).clip(1e-300)
        return out.reshape(n, -1)

    def _counts(self, rng, n, k):
        """Draws of the counts of one topic, in units of `scales`."""
        noise = np.broadcast_to(self.noise, self.counts.shape)[k]
        if not noise.any():
            return np.broadcast_to(self.counts[k] / self.scales, (n, len(self.scales)))
        centre = self.expected[k][:, None] * self.grid
        spread = (BETWEEN * (self.grid[1] / self.grid[0] - 1) * centre) ** 2
        variance = noise[:, None] ** 2 + spread
        log = -0.5 * ((self.seen[k][:, None] - centre) ** 2 / variance + np.log(variance))
        cumulated = np.cumsum(
            np.exp(log - log.max(axis=1, keepdims=True)) * self.probabilities, axis=1
        )
        uniform = rng.random((n, len(cumulated))) * cumulated[:, -1]
        chosen = np.zeros(uniform.shape, np.intp)
        for column in cumulated[:, :-1].T:
            chosen += uniform > column
        word = np.arange(len(centre))
        share = (spread / variance)[word, chosen]
        centre = centre[word, chosen]
        mean = centre + share * (self.seen[k] - centre)
        return (mean + noise * np.sqrt(share) * rng.standard_normal(mean.shape)).clip(0)


@dataclass(frozen=True, repr=False)
class TopicsDraws(DrawsPosterior):
    """Iterates of a chain over topics, K distributions over V words, ravelled.

    Attributes
    ----------
    totals : array of shape (K,)
        Counts of each topic at the end of the chain.
    """

    totals: np.ndarray

    @property
    def components(self) -> np.ndarray:
        """Counts with the mean of the draws, (K, V)."""
        return self.mean.reshape(len(self.totals), -1) * self.totals[:, None]
