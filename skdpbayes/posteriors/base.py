"""Posteriors returned by a fit, over the flattened parameters, in NumPy float64."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike


class Posterior(Protocol):
    """Posterior over the flattened parameters, as every fit returns it."""

    @property
    def mean(self) -> np.ndarray:
        """Mean of each parameter."""

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of each parameter."""

    @property
    def n_chains(self) -> int:
        """Number of Markov chains; 0 if draws are independent."""

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws, of shape (n, n_parameters)."""

    def ordered_sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws of shape (n, n_parameters): one of each chain, the next of each chain, and so on.

        Independent draws have no order: they are those of `sample`.
        """


class IndependentDraws(ABC):
    """Base of posteriors whose draws are independent."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws, of shape (n, n_parameters)."""

    @property
    def n_chains(self) -> int:
        """None: draws are independent."""
        return 0

    def ordered_sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws in any order, those of `sample`."""
        return self.sample(rng, n)


@dataclass(frozen=True, repr=False)
class GaussianPosterior(IndependentDraws):
    """Normal posterior.

    Attributes
    ----------
    mean : array of shape (n_parameters,)
    factor : array of shape (n_parameters, n_parameters) or (n_parameters,)
        Square root of the covariance: ``factor @ factor.T``; a vector stands for a diagonal. With
        fewer columns than rows, some combinations of parameters are certain.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.posteriors import GaussianPosterior
    >>> posterior = GaussianPosterior(np.array([1.0, -2.0]), np.array([0.1, 0.2]))
    >>> posterior.std
    array([0.1, 0.2])
    >>> posterior.sample(np.random.default_rng(0), 1000).shape
    (1000, 2)
    """

    mean: np.ndarray
    factor: np.ndarray

    @classmethod
    def from_precision(cls, mean: np.ndarray, precision: np.ndarray) -> GaussianPosterior:
        """Posterior with a given precision, of shape (n_parameters, n_parameters)."""
        values, vectors = np.linalg.eigh(precision)
        return cls(mean, vectors / np.sqrt(values.clip(1e-16 * values[-1])))

    def __repr__(self) -> str:
        kind = "diagonal" if self.factor.ndim == 1 else "full rank"
        return f"GaussianPosterior({len(self.mean)} parameters, {kind})"

    @property
    def covariance(self) -> np.ndarray:
        """Covariance, of shape (n_parameters, n_parameters)."""
        return np.diag(self.factor**2) if self.factor.ndim == 1 else self.factor @ self.factor.T

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of each parameter."""
        return (
            np.abs(self.factor) if self.factor.ndim == 1 else np.sqrt((self.factor**2).sum(axis=1))
        )

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws, of shape (n, n_parameters)."""
        noise = rng.standard_normal((n, self.factor.shape[-1]))
        return self.mean + (noise * self.factor if self.factor.ndim == 1 else noise @ self.factor.T)

    def mapped(self, axes: ArrayLike, offset: ArrayLike = 0.0) -> GaussianPosterior:
        """Posterior of ``axes @ parameters + offset``."""
        axes = np.asarray(axes, np.float64)
        factor = axes * self.factor if self.factor.ndim == 1 else axes @ self.factor
        return GaussianPosterior(axes @ self.mean + np.asarray(offset), factor)

    def rescaled(self, factor: np.ndarray, shift: np.ndarray) -> GaussianPosterior:
        """Posterior of ``factor * parameters + shift``."""
        root = factor if self.factor.ndim == 1 else factor[:, None]
        return GaussianPosterior(factor * self.mean + shift, root * self.factor)

    def among_others(self, basis: np.ndarray) -> GaussianPosterior:
        """Posterior of all coordinates: these along the orthonormal `basis`, others N(0, 1)."""
        factor = basis * self.factor if self.factor.ndim == 1 else basis @ self.factor
        return GaussianPosterior(
            basis @ self.mean, np.concatenate([factor, _complement(basis)], axis=1)
        )


@dataclass(frozen=True, repr=False)
class DrawsPosterior:
    """Posterior represented by Markov chain draws.

    Attributes
    ----------
    draws : array of shape (n_chains, n_draws, n_parameters)

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.posteriors import DrawsPosterior
    >>> posterior = DrawsPosterior(np.random.default_rng(0).normal(size=(4, 500, 3)))
    >>> posterior.mean.shape, posterior.covariance.shape
    ((3,), (3, 3))
    """

    draws: np.ndarray

    def __repr__(self) -> str:
        chains, draws, parameters = self.draws.shape
        return f"DrawsPosterior({parameters} parameters, {chains} chains of {draws} draws)"

    @property
    def mean(self) -> np.ndarray:
        """Mean of the draws."""
        return self.draws.mean(axis=(0, 1))

    @property
    def covariance(self) -> np.ndarray:
        """Covariance of the draws, of shape (n_parameters, n_parameters)."""
        return np.cov(self.draws.reshape(-1, self.draws.shape[-1]), rowvar=False).reshape(
            (len(self.mean),) * 2
        )

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of each parameter."""
        return self.draws.std(axis=(0, 1))

    @property
    def n_chains(self) -> int:
        """Number of chains."""
        return len(self.draws)

    @property
    def n_draws(self) -> int:
        """Number of draws, of all chains together."""
        return self.draws.shape[0] * self.draws.shape[1]

    def in_order(self, n: int) -> np.ndarray:
        """Draws of shape (n, n_parameters): one of each chain, the next of each chain, and so on.

        They are evenly spaced. If `n` exceeds the number of draws, each is repeated in a row, so
        that the repetition is visible.
        """
        kept, of_each = self.draws.shape[1], -(-n // self.n_chains)
        spaced = np.arange(of_each) * kept // of_each
        return self.draws[:, spaced].swapaxes(0, 1).reshape(-1, self.draws.shape[-1])[:n]

    def ordered_sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws as `in_order` gives them; `rng` is not used."""
        del rng
        return self.in_order(n)

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws picked at random, with replacement only if `n` exceeds their number."""
        flat = self.draws.reshape(-1, self.draws.shape[-1])
        return flat[rng.choice(len(flat), n, replace=n > len(flat))]

    def mapped(self, axes: ArrayLike, offset: ArrayLike = 0.0) -> DrawsPosterior:
        """Posterior of ``axes @ parameters + offset``."""
        return DrawsPosterior(self.draws @ np.asarray(axes, np.float64).T + np.asarray(offset))

    def rescaled(self, factor: np.ndarray, shift: np.ndarray) -> DrawsPosterior:
        """Draws of ``factor * parameters + shift``."""
        return DrawsPosterior(factor * self.draws + shift)

    def among_others(self, basis: np.ndarray) -> DrawsPosterior:
        """As `GaussianPosterior.among_others`; the other coordinates are drawn."""
        others = _complement(basis)
        # A seed of its own for each fit.
        seed = np.ascontiguousarray(self.draws.ravel()[:64], np.float32).view(np.uint32)
        noise = np.random.default_rng(seed).standard_normal(
            (*self.draws.shape[:2], others.shape[1])
        )
        return DrawsPosterior(self.draws @ basis.T + noise @ others.T)


def _complement(basis: np.ndarray) -> np.ndarray:
    """Orthonormal columns, orthogonal to those of `basis`."""
    return np.linalg.svd(basis)[0][:, basis.shape[1] :]


class SampledPosterior(IndependentDraws):
    """Posterior defined by its sampler. Its moments are those of 20000 draws, taken once."""

    @cached_property
    def _draws(self) -> np.ndarray:
        return self.sample(np.random.default_rng(0), 20_000)

    @property
    def mean(self) -> np.ndarray:
        """Mean of each parameter."""
        return self._draws.mean(axis=0)

    @property
    def covariance(self) -> np.ndarray:
        """Covariance, of shape (n_parameters, n_parameters)."""
        size = self._draws.shape[1]
        return np.cov(self._draws, rowvar=False).reshape(size, size) if size else np.zeros((0, 0))

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of each parameter."""
        return self._draws.std(axis=0)


@dataclass(frozen=True, repr=False)
class MappedPosterior(SampledPosterior):
    """Posterior of a function of the parameters, such as a rate whose logarithm was fitted.

    Attributes
    ----------
    posterior : GaussianPosterior or DrawsPosterior
    function : callable
        From draws of the parameters, of shape (n, n_parameters), to draws of the function.
    """

    posterior: GaussianPosterior | DrawsPosterior
    function: Callable[[np.ndarray], np.ndarray]

    def __repr__(self) -> str:
        return f"MappedPosterior({self.posterior!r})"

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws, of shape (n, ...)."""
        return self.function(self.posterior.sample(rng, n))
