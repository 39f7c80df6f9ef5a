"""Bayesian linear regression with an unknown noise variance, on bounded scores."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from scipy import stats

from skdpbayes.models.protocols import Array, Contribution, Number, Params, Record
from skdpbayes.pytrees import pytree

_FAR = 2.5  # of logarithms of variances, beyond which the mean slope is taken for constant


class Normal(Protocol):
    """Functions of the standard normal distribution, of SciPy or JAX."""

    def pdf(self, x: Any, /) -> Any:
        """Density."""

    def cdf(self, x: Any, /) -> Any:
        """Distribution function."""


class Huber(NamedTuple):
    """Where standardised residuals are cut, and moments of the cut standard normal."""

    cut: Number
    inside: Number  # P(|z| < cut)
    square_inside: Number  # E[z^2; |z| < cut]
    mean_square: Number  # E min(z^2, cut^2)
    # Factors of the scores of weights and of the variance that make their variance equal to their
    # slope, as for a log-likelihood.
    weights: Number
    variance: Number

    @classmethod
    def at(cls, cut: float) -> Huber:
        """Moments for a cut."""
        return cls(*map(np.float32, cls.moments(cut, stats.norm)))

    @classmethod
    def moments(cls, cut: Number, normal: Normal) -> Huber:
        """Moments for a cut, by functions for its kind of number."""
        density, inside = normal.pdf(cut), 2 * normal.cdf(cut) - 1
        square_inside = inside - 2 * cut * density
        mean_square = square_inside + cut**2 * (1 - inside)
        fourth = 3 * inside - 2 * (cut**3 + 3 * cut) * density + cut**4 * (1 - inside)
        variance = 2 * square_inside / (fourth - mean_square**2)
        return cls(cut, inside, square_inside, mean_square, inside / mean_square, variance)

    @property
    def slopes(self) -> tuple[Number, Number]:
        """Of the scores of weights and of the log variance."""
        return self.weights * self.inside, self.variance * self.square_inside / 2

    @property
    def spread(self) -> Number:
        """Largest score of the log variance."""
        return self.variance * 0.5 * (self.cut**2 - self.mean_square)


@pytree
@dataclass(frozen=True)
class LinearRegression:
    """Normal linear regression with a normal-inverse-gamma prior.

    ``y | x ~ N(w'x, s2)``, ``w | s2 ~ N(0, s2 / precision)``, ``s2 ~ InverseGamma(shape, scale)``.

    Parameters are ``w`` and ``u = log(s2) / unit``. Scores are those of Huber's proposal 2 (1964):
    standardised residuals are cut, and the score of the variance is centred. The expected score is
    still zero at the truth, if residuals are symmetric, and no response counts beyond the cut.
    `unit` scales the variance's score to the size of the weights'.

    A record is ``{"x": (n_columns,), "y": float}``; a response that is not finite makes it a null
    record.

    Attributes
    ----------
    n_columns : int
        Length of x, a constant column for the intercept included where there is one.
    precision, shape, scale : float
        Parameters of the prior.
    unit : float
    normal : array of shape (3,)
        Normal approximation of the prior for `na-dpvi`, with the same 5% and 95% quantiles
        (`normal_prior`): mean and standard deviation of the log variance, and standard deviation of
        a weight.
    huber : Huber
        Where residuals are cut.
    """

    n_columns: int = field(metadata={"static": True})
    precision: Number
    shape: Number
    scale: Number
    unit: Number
    normal: Array
    huber: Huber

    def init(self) -> Params:
        """Centre of the normal prior."""
        zeros = jnp.zeros(self.n_columns, jnp.float32)
        return {"u": jnp.asarray(self.normal[0] / self.unit, jnp.float32), "w": zeros}

    def log_prior(self, params: Params) -> jax.Array:
        """Log density of the prior of w and u."""
        log_variance = self._log_variance(params)
        square = jnp.sum(params["w"] ** 2) * self.precision
        return -(self.shape + self.n_columns / 2) * log_variance - (
            self.scale + square / 2
        ) * jnp.exp(-log_variance)

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Log-likelihood of one record, its residual unclipped (solvers use `score`)."""
        z, known = self._residual(params, record)
        return jnp.where(known, -0.5 * (z**2 + self._log_variance(params)), 0)

    def score(self, params: Params, record: Record) -> Contribution:
        """Huber's estimating functions, without the factors of `precondition`."""
        z, known = self._residual(params, record)
        own, of_row = self.huber, self.huber_of(record["x"])
        square = jnp.clip(z, -own.cut, own.cut) ** 2
        of_variance = self.unit * own.variance * 0.5 * (square - own.mean_square)
        of_weights = of_row.weights * jnp.clip(z, -of_row.cut, of_row.cut)
        return {
            "u": jnp.where(known, of_variance, 0),
            "w": jnp.where(known, of_weights, 0) * record["x"],
        }

    def huber_of(self, x: jax.Array) -> Huber:
        """Where residuals of a row are cut in the score of the weights."""
        del x
        return self.huber

    def precondition(self, params: Params) -> Params:
        """Factors of `score`, and of the rows and columns of `curvature`."""
        return {
            "u": jnp.ones((), jnp.float32),
            "w": jnp.full(self.n_columns, jnp.exp(-self._log_variance(params) / 2), jnp.float32),
        }

    def curvature(self, params: Params, record: Record) -> Contribution:
        """Expected negative derivative of the score, response-free; without the factors."""
        del params
        known, x = jnp.isfinite(record["y"]), record["x"]
        of_weights, of_variance = self.huber_of(x).slopes[0], self.huber.slopes[1]
        out = jnp.zeros((self.n_columns + 1, self.n_columns + 1), x.dtype)
        out = out.at[0, 0].set(self.unit**2 * of_variance)
        out = out.at[1:, 1:].set(of_weights * jnp.outer(x, x))
        return jnp.where(known, out, 0)

    def parameter_blocks(self) -> tuple[slice, ...]:
        """Log variance and weights, which are orthogonal: the curvature between them is zero."""
        return slice(0, 1), slice(1, None)

    def score_bound(self, params: Params, record: Record) -> jax.Array:
        """Largest norm of a score over all responses."""
        del params
        own = self.huber
        of_weights = jnp.sum(record["x"] ** 2) * (own.weights * own.cut) ** 2
        return jnp.sqrt(of_weights + (self.unit * own.spread) ** 2)

    def bounds(self, row_norm: float) -> tuple[float, float]:
        """Public bounds on the norms of score and curvature."""
        own = self.huber
        of_weights, of_variance = own.slopes
        return (
            math.hypot(own.weights * own.cut * row_norm, self.unit * own.spread),
            math.hypot(of_weights * row_norm**2, self.unit**2 * of_variance),
        )

    def working_point(
        self, params: jax.Array, curvature: jax.Array, covariance: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Point of release while the weights are uncertain: the variance is that of the residuals.

        With normal residuals of this variance Huber's scores have expectation zero and a known
        slope; a smaller variance would clip most of them.

        Parameters
        ----------
        params : array of shape (P,)
            Posterior mean (ravelled).
        curvature, covariance : arrays of shape (P, P)
            Curvature, summed over the records without the factors of `precondition`; posterior
            covariance.

        Returns
        -------
        point, slopes, doubt : arrays of shape (P,)
            Point of release; factors of the scores' slopes, in the place of those of
            `precondition`; variance of the scores due to the uncertain weights.
        """
        of_weights, of_variance = self.huber.slopes
        # Number of records, by their weights.
        n = jnp.maximum(curvature[0, 0] / (self.unit**2 * of_variance), 1)
        variance = jnp.exp(self._log_variance({"u": params[0]}))
        unknown = curvature[1:, 1:] @ covariance[1:, 1:] / (of_weights * n)
        seen = variance + jnp.maximum(jnp.trace(unknown), 0)
        point = params.at[0].set(jnp.log(seen) / self.unit)
        slopes = jnp.full(len(params), seen**-0.5).at[0].set(variance / seen)
        # Uncertain weights add a quadratic form of normal variables to the residuals' variance.
        spread = 4 * jnp.maximum(jnp.sum(unknown * unknown.T), 0)
        doubt = jnp.zeros(len(params)).at[0].set(spread * (self.unit * n * of_variance / seen) ** 2)
        return point, slopes, doubt

    def mean_slopes(self, params: jax.Array, points: jax.Array) -> jax.Array:
        """Mean slopes of scores between each of `points` and `params`, over those at `params`.

        The score of a variance that is far too large hardly depends on it: it is linear neither in
        the variance, since large residuals are clipped, nor in its logarithm.
        """
        own = self.huber
        moved = jnp.clip(self.unit * (params[0] - points[:, 0]), -_FAR, -1e-3)
        cut = own.cut * jnp.exp(-moved / 2)
        outside = 2 * norm.sf(cut)
        square = jnp.exp(moved) * (1 - outside - 2 * cut * norm.pdf(cut))  # of those inside
        change = (square + own.cut**2 * outside - own.mean_square) / own.square_inside
        return jnp.ones_like(points).at[:, 0].set(change / moved)

    def longest_step(self) -> jax.Array:
        """Longest steps in a round: a factor of e for the variance, and any for the weights."""
        return jnp.full(1 + self.n_columns, jnp.inf).at[0].set(1 / self.unit)

    def prior_precision(self) -> Params:
        """Precision of the normal prior."""
        return {
            "u": jnp.asarray((self.unit / self.normal[1]) ** 2, jnp.float32),
            "w": jnp.full(self.n_columns, self.normal[2] ** -2, jnp.float32),
        }

    def _log_variance(self, params):
        return jnp.clip(params["u"] * self.unit, -40, 40)

    def _residual(self, params, record):
        known = jnp.isfinite(record["y"])
        residual = jnp.where(known, record["y"], 0) - params["w"] @ record["x"]
        return residual * jnp.exp(-self._log_variance(params) / 2), known


def normal_prior(precision: float, shape: float, scale: float) -> np.ndarray:
    """Normal distributions with the 5% and 95% quantiles of the log variance and of a weight.

    The prior of a weight is a Student t distribution.
    """
    low, high = np.log(stats.invgamma(shape, scale=scale).ppf([0.05, 0.95]))
    quantile = stats.norm.ppf(0.95)
    weight = stats.t(2 * shape).ppf(0.95) / quantile * math.sqrt(scale / (shape * precision))
    return np.array([(low + high) / 2, (high - low) / (2 * quantile), weight], np.float32)
