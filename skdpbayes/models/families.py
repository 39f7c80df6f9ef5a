"""Exponential families with conjugate priors.

Gamma-Exponential, Beta-Bernoulli and Dirichlet-Categorical.

Parameters are unconstrained, as gradient solvers need them; ``constrained`` maps them to the
natural parameter. Each model also has a bounded ``statistic`` of a record, the only release of a
private conjugate update, and ``noisy_posterior(total, scale, n_records)``, the posterior given the
summed statistics plus normal noise of standard deviation `scale`. A statistic is centred in its
range: a record then moves the sum by at most half the range.

Records that hold a NaN give a NaN statistic, score and likelihood, which the private sum turns into
zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.models.protocols import Array, Contribution, Number, Params, Record
from skdpbayes.posteriors.conjugate import CountsPosterior, FirstOfEach, RatePosterior
from skdpbayes.pytrees import pytree

_MOST = 30.0  # largest |unconstrained parameter|; beyond, floats would overflow
_EDGE = 1e-6  # of the range of a mean, at which no variance is left
_BINS = 64  # of the distribution of a censored time


class ConjugateFamily:
    """Base of the families: their scores are linear in the statistic.

    The noisy sums of one round therefore say all that those of many rounds would.
    """


@pytree
@dataclass(frozen=True)
class GammaExponential(ConjugateFamily):
    """``x_j | theta_j ~ Exponential(theta_j)``, ``theta_j ~ Gamma(shape, rate)``.

    Parameters are ``log theta``.

    Observations are censored at `upper`: only ``min(x, upper)`` enters, with its likelihood.

    Attributes
    ----------
    n_features : int
    shape, rate : float
        Parameters of the prior.
    upper : float
        Public censoring point.
    """

    n_features: int = field(metadata={"static": True})
    shape: Number
    rate: Number
    upper: Number

    def init(self) -> Params:
        """Log of the prior mean of theta."""
        return jnp.full(self.n_features, jnp.log(self.shape / self.rate), jnp.float32)

    def log_prior(self, params: Params) -> jax.Array:
        """Log density of the prior of ``log theta``."""
        return jnp.sum(self.shape * params - self.rate * jnp.exp(params))

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Log-likelihood of one censored record."""
        x = record["x"]
        return jnp.sum(self._seen(x) * params - jnp.exp(params) * self._censored(x))

    def score(self, params: Params, record: Record) -> Contribution:
        """``1 - theta x``; ``-theta upper`` for a censored x."""
        x = record["x"]
        return self._seen(x) - jnp.exp(params) * self._censored(x)

    def curvature(self, params: Params, record: Record) -> Contribution:
        """``diag(theta x)``."""
        return jnp.diag(jnp.exp(params) * self._censored(record["x"]))

    def score_bound(self, params: Params, record: Record) -> jax.Array:
        """Largest norm of a score: in each feature 1 at x = 0, ``theta upper`` at x = upper."""
        del record
        return jnp.sqrt(
            jnp.sum(jnp.maximum(1, jnp.exp(jnp.minimum(params, _MOST)) * self.upper) ** 2)
        )

    def bounds(self, theta: float) -> tuple[float, float]:
        """Public bounds on the norms of score and curvature where no theta exceeds `theta`."""
        most, root = float(theta * self.upper), math.sqrt(self.n_features)
        return root * max(1.0, most), root * most

    def prior_precision(self) -> Params:
        """Curvature of the log prior at its start, ``shape``."""
        return jnp.full(self.n_features, self.shape, jnp.float32)

    def known(self, record: Record) -> jax.Array:
        """One; NaN for a null record."""
        return 1 + 0 * jnp.sum(record["x"])

    def statistic(self, record: Record) -> jax.Array:
        """``min(x, upper)``, less half of `upper`."""
        return self._censored(record["x"]) - self.upper / 2

    def statistic_bound(self) -> float:
        """Largest norm of `statistic`."""
        return float(self.upper) / 2 * math.sqrt(self.n_features)

    @property
    def n_statistics(self) -> int:
        """Length of `statistic`."""
        return self.n_features

    def range_of_means(self) -> tuple[Number, Number]:
        """Range of the mean of `statistic`, within which each entry may lie."""
        largest = self.upper * (0.5 - _EDGE)
        return -largest, largest

    def rows_about(self, centre: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Values of the entries less their mean, and probabilities, (n_statistics, g) each.

        On a grid of bins, whose values are split between both ends so that means are exact.
        """
        mean = (centre + self.upper / 2) / self.upper  # of a unit range

        def halved(i: int, logs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = logs
            middle = (low + high) / 2
            short = -jnp.expm1(-jnp.exp(middle)) / jnp.exp(middle) < mean  # the rate is too large
            return jnp.where(short, low, middle), jnp.where(short, middle, high)

        ends = jnp.full_like(mean, -_MOST), jnp.full_like(mean, _MOST)
        rate = jnp.exp(jax.lax.fori_loop(0, 60, halved, ends)[0])[:, None]
        nodes = jnp.linspace(0, 1, _BINS + 1)
        below = -jnp.expm1(-rate * nodes) / rate * _BINS  # E min(x, node), in bins
        slopes = jnp.diff(below, axis=1, prepend=below[:, :1] - 1, append=below[:, -1:])
        return (nodes - mean[:, None]) * self.upper, -jnp.diff(slopes, axis=1)

    def noisy_posterior(
        self, total: np.ndarray, scale: float | np.ndarray, n_records: int
    ) -> RatePosterior:
        """Posterior of the rates."""
        return RatePosterior(
            total, scale, n_records, float(self.shape), float(self.rate), float(self.upper)
        )

    def _censored(self, x: jax.Array) -> jax.Array:
        return jnp.clip(x, 0, self.upper)  # NaN stays NaN

    def _seen(self, x: jax.Array) -> jax.Array:
        return jnp.where(jnp.isnan(x), x, (x < self.upper).astype(x.dtype))

    @staticmethod
    def constrained(draws: np.ndarray) -> np.ndarray:
        """Rates from draws of the parameters, shape (n, n_features)."""
        return np.exp(np.clip(draws, -_MOST, _MOST))


@pytree
@dataclass(frozen=True)
class BetaBernoulli(ConjugateFamily):
    """``x_j | theta_j ~ Bernoulli(theta_j)``, ``theta_j ~ Beta(a, b)``; parameters ``logit theta``.

    Observations are taken as 1 if they exceed 1/2.

    Attributes
    ----------
    n_features : int
    a, b : float
        Parameters of the prior.
    """

    n_features: int = field(metadata={"static": True})
    a: Number
    b: Number

    def init(self) -> Params:
        """Logit of the prior mean."""
        return jnp.full(self.n_features, jnp.log(self.a / self.b), jnp.float32)

    def log_prior(self, params: Params) -> jax.Array:
        """Log density of the prior of ``logit theta``."""
        return jnp.sum(self.a * jax.nn.log_sigmoid(params) + self.b * jax.nn.log_sigmoid(-params))

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Log-likelihood of one record."""
        x = _binary(record["x"])
        return jnp.sum(x * params - jax.nn.softplus(params))

    def score(self, params: Params, record: Record) -> Contribution:
        """``x - theta``."""
        return _binary(record["x"]) - jax.nn.sigmoid(params)

    def curvature(self, params: Params, record: Record) -> Contribution:
        """``diag(theta (1 - theta))``."""
        theta = jax.nn.sigmoid(params)
        return jnp.diag(theta * (1 - theta) + 0 * _binary(record["x"]))  # NaN for NaN

    def score_bound(self, params: Params, record: Record) -> jax.Array:
        """Largest norm of a score over all x."""
        del record
        theta = jax.nn.sigmoid(params)
        return jnp.sqrt(jnp.sum(jnp.maximum(theta, 1 - theta) ** 2))

    def bounds(self) -> tuple[float, float]:
        """Public bounds on the norms of score and curvature."""
        root = math.sqrt(self.n_features)
        return root, root / 4

    def prior_precision(self) -> Params:
        """Curvature of the log prior at its start."""
        total = self.a + self.b
        return jnp.full(self.n_features, self.a * self.b / total, jnp.float32)

    def known(self, record: Record) -> jax.Array:
        """One; NaN for a null record."""
        return 1 + 0 * jnp.sum(record["x"])

    def statistic(self, record: Record) -> jax.Array:
        """``x - 1/2``."""
        return _binary(record["x"]) - 0.5

    def statistic_bound(self) -> float:
        """Largest norm of `statistic`."""
        return 0.5 * math.sqrt(self.n_features)

    @property
    def n_statistics(self) -> int:
        """Length of `statistic`."""
        return self.n_features

    def range_of_means(self) -> tuple[Number, Number]:
        """Range of the mean of `statistic`, within which each entry may lie."""
        return -0.5 + _EDGE, 0.5 - _EDGE

    def rows_about(self, centre: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Values of the entries less their mean, and probabilities, (n_statistics, 2) each."""
        return _two_values(centre + 0.5)

    def noisy_posterior(
        self, total: np.ndarray, scale: float | np.ndarray, n_records: int
    ) -> FirstOfEach:
        """Posterior of the probabilities."""
        # A sum of x - 1/2 is half the difference of two counts; independent noise in both counts
        # has sqrt(2) times its standard deviation.
        pairs = [
            CountsPosterior(
                np.array([t, -t]),
                own * math.sqrt(2),
                n_records,
                np.array([self.a, self.b], float),
            )
            for t, own in zip(total, np.broadcast_to(scale, np.shape(total)), strict=True)
        ]
        return FirstOfEach(tuple(pairs))

    @staticmethod
    def constrained(draws: np.ndarray) -> np.ndarray:
        """Probabilities from draws of the parameters, shape (n, n_features)."""
        return 1 / (1 + np.exp(-np.clip(draws, -500, 500)))


@pytree
@dataclass(frozen=True)
class DirichletCategorical(ConjugateFamily):
    """``x | theta ~ Categorical(theta)``, ``theta ~ Dirichlet(concentration)``.

    Parameters are ``log(theta_k / theta_K)``, k < K. A record is ``{"x": code}``; a code outside
    0..K-1 marks a null record.

    Attributes
    ----------
    concentration : array of shape (K,)
    """

    concentration: Array

    @property
    def n_categories(self) -> int:
        """K."""
        return self.concentration.shape[0]

    def init(self) -> Params:
        """Log ratios of the prior mean."""
        log = jnp.log(jnp.asarray(self.concentration, jnp.float32))
        return log[:-1] - log[-1]

    def log_prior(self, params: Params) -> jax.Array:
        """Log density of the prior of the log ratios."""
        return jnp.sum(self.concentration * jax.nn.log_softmax(jnp.append(params, 0)))

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Log-likelihood of one record; zero for a null record."""
        code = record["x"]
        log = jax.nn.log_softmax(jnp.append(params, 0))
        return jnp.where(self._known(code), log[jnp.where(self._known(code), code, 0)], 0)

    def score(self, params: Params, record: Record) -> Contribution:
        """``e_x - theta``, without the last category."""
        difference = self._one_hot(record["x"]) - self._theta(params)
        return jnp.where(self._known(record["x"]), difference, 0)[:-1]

    def curvature(self, params: Params, record: Record) -> Contribution:
        """``diag(theta) - theta theta'``, without the last category."""
        theta = self._theta(params)[:-1]
        return jnp.where(self._known(record["x"]), jnp.diag(theta) - jnp.outer(theta, theta), 0)

    def score_bound(self, params: Params, record: Record) -> jax.Array:
        """Largest norm of a score over all categories.

        ``|e_k - t|^2 = 1 - 2 t_k + |t|^2``, and ``|t|^2`` for the last category.
        """
        del record
        t = self._theta(params)[:-1]
        return jnp.sqrt(jnp.sum(t**2) + jnp.maximum(0, 1 - 2 * jnp.min(t)))

    def bounds(self) -> tuple[float, float]:
        """Public bounds on the norms of score and curvature."""
        return math.sqrt(2), 0.5

    def prior_precision(self) -> Params:
        """Diagonal of the curvature of the log prior at its start."""
        concentration = jnp.asarray(self.concentration, jnp.float32)
        mean = concentration / concentration.sum()
        return (concentration * (1 - mean))[:-1]

    def known(self, record: Record) -> jax.Array:
        """One; zero for a null record."""
        return self._known(record["x"]).astype(jnp.float32)

    def statistic(self, record: Record) -> jax.Array:
        """``e_x - 1/K``; zero for a null record."""
        code = record["x"]
        return jnp.where(self._known(code), self._one_hot(code) - 1 / self.n_categories, 0)

    def statistic_bound(self) -> float:
        """Largest norm of `statistic`."""
        return math.sqrt(1 - 1 / self.n_categories)

    @property
    def n_statistics(self) -> int:
        """Length of `statistic`."""
        return self.n_categories

    def range_of_means(self) -> tuple[Number, Number]:
        """Range of the mean of `statistic`, within which each entry may lie."""
        return _EDGE - 1 / self.n_categories, 1 - 1 / self.n_categories - _EDGE

    def rows_about(self, centre: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Values of the entries less their mean, and probabilities, (n_statistics, 2) each."""
        return _two_values(centre + 1 / self.n_categories)

    def noisy_posterior(
        self, total: np.ndarray, scale: float | np.ndarray, n_records: int
    ) -> CountsPosterior:
        """Posterior of the probabilities."""
        concentration = np.asarray(self.concentration, np.float64)
        counts = total + n_records / len(concentration)
        return CountsPosterior(counts, scale, n_records, concentration)

    def _theta(self, params):
        return jax.nn.softmax(jnp.append(params, 0))

    def _known(self, code):
        return (code >= 0) & (code < self.n_categories)

    def _one_hot(self, code):
        return (jnp.arange(self.n_categories) == code).astype(jnp.float32)

    @staticmethod
    def constrained(draws: np.ndarray) -> np.ndarray:
        """Probabilities from draws of the parameters, shape (n, K)."""
        logits = np.concatenate([draws, np.zeros((len(draws), 1))], axis=1)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)


def _two_values(share: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Values of an indicator less its mean, and their probabilities, (n, 2) each."""
    return jnp.stack([-share, 1 - share], axis=1), jnp.stack([1 - share, share], axis=1)


def _binary(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isnan(x), x, (x > 0.5).astype(x.dtype))
