"""Simulated problems of Tables 1 and 2 of the NA-DPVI paper (section 4, H.5), with known truth.

And the model of its Table 3, whose records are real.

All coordinates are unconstrained: softplus for a positive number, log-odds for a probability,
log-ratios to the last category for several. Each problem draws parameters from its prior, records
given parameters, and parameters given records (the non-private posterior, exactly).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from benchmarks._na_dpvi_collapsed import softplus, softplus_inverse
from skdpbayes.pytrees import pytree

Array = NDArray[np.float64]
N_RECORDS = 5_000


@pytree
@dataclass(frozen=True)
class GammaExponential:
    """``rate ~ Gamma(8, 2)``, ``x ~ Exponential(rate)``."""

    size = 1

    def init(self):
        return jnp.zeros(1)

    def log_prior(self, theta):
        rate = jax.nn.softplus(theta[0])
        return 7 * jnp.log(rate) - 2 * rate + jax.nn.log_sigmoid(theta[0])

    def log_likelihood(self, theta, record):
        rate = jax.nn.softplus(theta[0])
        return jnp.log(rate) - rate * record

    def mean_scores(self, thetas, noise, record):
        """Means over draws of the score and of its product with the noise: linear in the record."""
        slope, rate = jax.nn.sigmoid(thetas), jax.nn.softplus(thetas)
        weights = jnp.ones_like(noise), noise
        of_record = (jnp.mean(slope * w, axis=0) for w in weights)
        of_none = (jnp.mean(slope / rate * w, axis=0) for w in weights)
        return tuple(a - record * b for a, b in zip(of_none, of_record, strict=True))

    def draw_prior(self, rng: np.random.Generator, n: int) -> Array:
        return softplus_inverse(rng.gamma(8, 1 / 2, (n, 1)))

    def draw_records(self, rng: np.random.Generator, theta: Array) -> NDArray[np.float32]:
        return rng.exponential(1 / softplus(theta), N_RECORDS).astype(np.float32)

    def draw_posterior(self, rng: np.random.Generator, records, n: int) -> Array:
        return softplus_inverse(
            rng.gamma(8 + len(records), 1 / (2 + records.sum(dtype=float)), (n, 1))
        )


@pytree
@dataclass(frozen=True)
class BetaBernoulli:
    """``p ~ Beta(10, 10)``, ``x ~ Bernoulli(p)``."""

    size = 1

    def init(self):
        return jnp.zeros(1)

    def log_prior(self, theta):
        return 10 * (jax.nn.log_sigmoid(theta[0]) + jax.nn.log_sigmoid(-theta[0]))

    def log_likelihood(self, theta, record):
        return record * theta[0] - jax.nn.softplus(theta[0])

    def mean_scores(self, thetas, noise, record):
        """Means over draws of the score and of its product with the noise, in closed form."""
        p = jax.nn.sigmoid(thetas)
        of_noise = record * jnp.mean(noise, axis=0) - jnp.mean(p * noise, axis=0)
        return record - jnp.mean(p, axis=0), of_noise

    def draw_prior(self, rng: np.random.Generator, n: int) -> Array:
        p = rng.beta(10, 10, (n, 1))
        return np.log(p) - np.log1p(-p)

    def draw_records(self, rng: np.random.Generator, theta: Array) -> NDArray[np.float32]:
        return (rng.random(N_RECORDS) < 1 / (1 + np.exp(-theta))).astype(np.float32)

    def draw_posterior(self, rng: np.random.Generator, records, n: int) -> Array:
        ones = records.sum(dtype=float)
        p = rng.beta(10 + ones, 10 + len(records) - ones, (n, 1))
        return np.log(p) - np.log1p(-p)


@pytree
@dataclass(frozen=True)
class DirichletCategorical:
    """``p ~ Dirichlet(5, 5, 5)``, ``x ~ Categorical(p)``, one-hot."""

    size = 2

    def init(self):
        return jnp.zeros(2)

    def log_prior(self, theta):
        return 5 * jnp.sum(jax.nn.log_softmax(jnp.append(theta, 0.0)))

    def log_likelihood(self, theta, record):
        return record @ jax.nn.log_softmax(jnp.append(theta, 0.0))

    def score(self, theta, record):
        return record[:2] - jax.nn.softmax(jnp.append(theta, 0.0))[:2]

    def mean_scores(self, thetas, noise, record):
        """Means over draws of the score and of its product with the noise, in closed form."""
        p = jax.nn.softmax(jnp.pad(thetas, ((0, 0), (0, 1))), axis=1)[:, :2]
        return record[:2] - jnp.mean(p, axis=0), record[:2] * jnp.mean(noise, axis=0) - jnp.mean(
            p * noise, axis=0
        )

    def draw_prior(self, rng: np.random.Generator, n: int) -> Array:
        p = rng.dirichlet([5, 5, 5], n)
        return np.log(p[:, :2]) - np.log(p[:, 2:])

    def draw_records(self, rng: np.random.Generator, theta: Array) -> NDArray[np.float32]:
        p = np.exp(np.append(theta, 0))
        return np.eye(3, dtype=np.float32)[rng.choice(3, N_RECORDS, p=p / p.sum())]

    def draw_posterior(self, rng: np.random.Generator, records, n: int) -> Array:
        p = rng.dirichlet(5 + records.sum(axis=0, dtype=float), n)
        return np.log(p[:, :2]) - np.log(p[:, 2:])


@pytree
@dataclass(frozen=True)
class LinearRegression:
    """``s2 ~ InverseGamma(20, 1/2)``, ``w ~ N(0, 4 s2 I)``, ``y ~ N(w'(x, 1), s2)``, normal x.

    A record is ``(x, 1, y)``; the last parameter is that of s2.
    """

    size = 12

    def init(self):
        return jnp.append(jnp.ones(11), -4.0)

    def log_prior(self, theta):
        s2 = jax.nn.softplus(theta[11])
        of_w = -5.5 * jnp.log(s2) - jnp.sum(theta[:11] ** 2) / (8 * s2)
        return of_w - 21 * jnp.log(s2) - 0.5 / s2 + jax.nn.log_sigmoid(theta[11])

    def log_likelihood(self, theta, record):
        s2 = jax.nn.softplus(theta[11])
        return -0.5 * jnp.log(s2) - (record[11] - record[:11] @ theta[:11]) ** 2 / (2 * s2)

    def score(self, theta, record):
        s2 = jax.nn.softplus(theta[11])
        residual = (record[11] - record[:11] @ theta[:11]) / s2
        return jnp.append(
            residual * record[:11], (residual**2 - 1 / s2) / 2 * jax.nn.sigmoid(theta[11])
        )

    def mean_scores(self, thetas, noise, record):
        """Means over draws of the score and of its product with the noise, in closed form."""
        s2, last = jax.nn.softplus(thetas[:, 11]), jnp.arange(12) == 11
        residual = -(jnp.where(last, -1, thetas) @ record) / s2
        of_s2 = (residual**2 - 1 / s2) / 2 * jax.nn.sigmoid(thetas[:, 11])
        # Products with all of the record, and a choice, are faster than slices and concatenation.
        own = jnp.where(last, jnp.mean(of_s2), record * jnp.mean(residual))
        return own, jnp.where(
            last, jnp.mean(of_s2 * noise[:, 11]), record * (residual @ noise) / len(thetas)
        )

    def draw_prior(self, rng: np.random.Generator, n: int) -> Array:
        s2 = 0.5 / rng.gamma(20, 1, (n, 1))
        return np.concatenate(
            [rng.normal(size=(n, 11)) * np.sqrt(4 * s2), softplus_inverse(s2)], axis=1
        )

    def draw_records(self, rng: np.random.Generator, theta: Array) -> NDArray[np.float32]:
        Z = np.concatenate([rng.normal(size=(N_RECORDS, 10)), np.ones((N_RECORDS, 1))], axis=1)
        y = Z @ theta[:11] + np.sqrt(softplus(theta[11])) * rng.normal(size=N_RECORDS)
        return np.concatenate([Z, y[:, None]], axis=1).astype(np.float32)

    def draw_posterior(self, rng: np.random.Generator, records, n: int) -> Array:
        Z, y = records[:, :11].astype(float), records[:, 11].astype(float)
        precision = Z.T @ Z + np.eye(11) / 4
        mean = np.linalg.solve(precision, Z.T @ y)
        s2 = (0.5 + (y @ y - mean @ precision @ mean) / 2) / rng.gamma(20 + len(y) / 2, 1, (n, 1))
        root = np.linalg.inv(np.linalg.cholesky(precision))
        return np.concatenate(
            [mean + np.sqrt(s2) * (rng.normal(size=(n, 11)) @ root), softplus_inverse(s2)], axis=1
        )


@pytree
@dataclass(frozen=True)
class LogisticRegression:
    """``w ~ N(0, I)``, ``y ~ Bernoulli(sigmoid(w'x))``. Records are ``(x, y)``, with a constant."""

    size: int = field(metadata={"static": True})

    def init(self):
        return jnp.zeros(self.size)

    def log_prior(self, theta):
        return -0.5 * jnp.sum(theta**2)

    def log_likelihood(self, theta, record):
        logit = record[:-1] @ theta
        return record[-1] * logit - jax.nn.softplus(logit)

    def score(self, theta, record):
        return (record[-1] - jax.nn.sigmoid(record[:-1] @ theta)) * record[:-1]

    def mean_scores(self, thetas, noise, record):
        """Means over draws of the score and of its product with the noise, in closed form."""
        x, residual = record[:-1], record[-1] - jax.nn.sigmoid(thetas @ record[:-1])
        return jnp.mean(residual) * x, (residual @ noise) / len(thetas) * x


@dataclass(frozen=True)
class Settings:
    """The paper's settings of one problem (its appendix H and its code).

    Attributes
    ----------
    clipping_norm : float
    beta_u : float
        Factor of the gradient in u before it is clipped.
    learning_rate : float or tuple
        lambda_c of the paper's heuristic, one number or one for each parameter.
    start_u : float
    """

    clipping_norm: float
    beta_u: float
    learning_rate: Any
    start_u: float


PROBLEMS: dict[str, tuple[Any, Settings]] = {
    "Gamma-Exponential": (GammaExponential(), Settings(2.0, 100.0, 1.0, -4.0)),
    "Beta-Bernoulli": (BetaBernoulli(), Settings(2.0, 120.0, 1.0, -4.0)),
    "Dirichlet-Categorical": (DirichletCategorical(), Settings(2**0.5, 100.0, 1.0, -6.0)),
    "linear regression": (
        LinearRegression(),
        Settings(260.0, 1500.0, (4.0,) * 11 + (4 / 28,), -6.0),
    ),
}


def adult(size: int) -> tuple[LogisticRegression, Settings]:
    """The model of Table 3 with this many coefficients (57 in the paper), and its settings."""
    return LogisticRegression(size), Settings(11.0, 550.0, size**0.5, -6.0)
