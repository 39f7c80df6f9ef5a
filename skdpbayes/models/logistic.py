"""Bayesian logistic regression, binary and multinomial."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import stats
from scipy.linalg import helmert

from skdpbayes.mechanism.contributions import Quadratic, RankOne
from skdpbayes.mechanism.grid import grid_of
from skdpbayes.models.protocols import Array, Contribution, Number, Params, Record
from skdpbayes.models.quadrature import normal_nodes
from skdpbayes.pytrees import pytree


@pytree
@dataclass(frozen=True)
class LogisticRegression:
    """``y | x ~ Categorical(softmax(W x))``, or Bernoulli for two classes.

    The priors on W are independent, normal or Student t.

    A record is ``{"x": (n_columns,), "y": integer class}``; a class outside ``0..n_classes-1``
    marks a null record, whose likelihood is constant.

    Attributes
    ----------
    n_columns : int
        Length of x, a constant column for the intercept included where there is one.
    n_classes : int
        Two classes have one row of weights, more have one row each.
    prior_scale : array of shape (n_columns,)
        Prior standard deviation of each column's weights, or scale of their Student t prior.
    prior_df : array of shape (n_columns,), or None
        Degrees of freedom of each column's Student t prior; None: all priors are normal.
    row_norm : float
        Public norm of x up to which a row has its full weight (`largest_weight`); infinite where
        nothing has to be bounded.
    constant : bool
        Whether the last column is constant, for an intercept.
    common_scale : array of shape (n_columns,), or None
        One for columns whose Student t priors have a common scale factor
        (`normal_posterior`), else zero; None: no column's prior has.
    """

    n_columns: int = field(metadata={"static": True})
    n_classes: int = field(metadata={"static": True})
    prior_scale: Array
    prior_df: Array | None = None
    row_norm: Number = math.inf
    constant: bool = field(default=False, metadata={"static": True})
    common_scale: Array | None = None

    @property
    def n_rows(self) -> int:
        """Rows of W."""
        return 1 if self.n_classes == 2 else self.n_classes

    def init(self) -> Params:
        """Zero weights, of shape (n_rows, n_columns)."""
        return jnp.zeros((self.n_rows, self.n_columns), jnp.float32)

    def log_prior(self, params: Params) -> jax.Array:
        """Log density of the prior, where a common scale factor is one."""
        unit, df = params / self.prior_scale, self.prior_df
        log = stats.norm.logpdf(unit) if df is None else stats.t.logpdf(unit, df)
        return jnp.sum(log - jnp.log(self.prior_scale))

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Log-likelihood of one record; zero for a null record."""
        logits, label = self._logits(params, record), record["y"]
        if self.n_rows == 1:
            logits = jnp.concatenate([jnp.zeros_like(logits), logits])
        known = self._known(label)
        return jnp.where(known, jax.nn.log_softmax(logits)[jnp.where(known, label, 0)], 0)

    def score(self, params: Params, record: Record) -> Contribution:
        """Gradient: residual times features."""
        x, label = record["x"], record["y"]
        p = self.probabilities(self._logits(params, record))
        residual = (label == self._row_classes()).astype(p.dtype) - p
        return RankOne(jnp.where(self._known(label), residual, 0), x, grid_of(record))

    def curvature(self, params: Params, record: Record) -> Contribution:
        """Negative Hessian: ``(diag(p) - p p') (x) x x'``."""
        x, label = record["x"], record["y"]
        p = self.probabilities(self._logits(params, record))
        weight = jnp.diag(p) - jnp.outer(p, p)
        return Quadratic(jnp.where(self._known(label), weight, 0), x)

    def score_bound(self, params: Params, record: Record) -> jax.Array:
        """Largest norm of a score over all labels, given covariates and parameters."""
        p = self.probabilities(self._logits(params, record))
        if self.n_rows == 1:
            residual = jnp.maximum(p, 1 - p)[0]
        else:  # |e_k - p|^2 = |p|^2 + 1 - 2 p_k
            residual = jnp.sqrt(jnp.sum(p**2) + jnp.max(1 - 2 * p))
        return residual * self._length(record)

    def largest_weight(self, record: Record) -> jax.Array:
        """Weight at which a long row has the squared length of a row of `row_norm`.

        Its curvature is then no larger. A row that lost length instead would have the wrong logit.
        """
        return 1 / jnp.maximum(1, self._length(record) / self.row_norm) ** 2

    def bounds(self, row_norm: float) -> tuple[float, float]:
        """Public bounds on the norms of score and curvature, given one on the norm of x."""
        # Residuals have norm at most 1 (two classes) or sqrt(2), diag(p) - p p' norm at most 1/4 or
        # 1/2.
        residual, weight = (1.0, 0.25) if self.n_rows == 1 else (2**0.5, 0.5)
        return residual * row_norm, weight * row_norm**2

    def response(self, record: Record) -> RankOne:
        """Label-dependent part of the score: ``(e_y - c) x'``, c the centre of the simplex."""
        x, label = record["x"], record["y"]
        observed = (label == self._row_classes()).astype(jnp.float32) - 1 / self.n_classes
        return RankOne(jnp.where(self._known(label), observed, 0), x, grid_of(record))

    def fitted(self, params: Params, record: Record) -> RankOne:
        """Label-free part of the score: ``(p - c) x'``; `score` is the difference."""
        x, known = record["x"], self._known(record["y"])
        p = self.probabilities(self._logits(params, record))
        return RankOne(jnp.where(known, p - 1 / self.n_classes, 0), x, grid_of(record))

    def known(self, record: Record) -> jax.Array:
        """One, or zero for a null record."""
        return self._known(record["y"]).astype(record["x"].dtype)

    def parts_bound(self, row_norm: float) -> float:
        """Public bound on the norms of `response` and `fitted`.

        It is the distance from the centre of the simplex to a corner, times `row_norm`.
        """
        return row_norm * (0.5 if self.n_rows == 1 else (1 - 1 / self.n_classes) ** 0.5)

    def mean_fitted(self, params, mean, covariance, unclear=0.0):
        """Mean of `fitted` over normal rows, of the shape of `params`.

        With u = W x, ``E[p x'] = E[p] m' + E[dp/du] W C`` (Stein's lemma). `unclear` is added to
        the covariance of u, for uncertain parameters (`with_doubt`).
        """
        p, slope = self._mean_slope(params, mean, covariance, unclear)
        return jnp.outer(p - 1 / self.n_classes, mean) + slope @ params @ covariance

    def with_doubt(self, params, mean, covariance, doubt):
        """Mean of `fitted` over normal rows and normal parameters.

        By Stein's lemma ``E[dp/du W]`` is ``E[dp/du] E[W]`` plus `doubt` times the slope of
        ``E[dp/du]``.

        Parameters
        ----------
        params, mean, covariance : arrays
            As in `mean_fitted`.
        doubt : array of the shape of `params`, twice
            Covariance of the parameters.
        """
        unclear = jnp.einsum("iajb,ab->ij", doubt, covariance + jnp.outer(mean, mean))
        turn = jax.jacfwd(lambda at: self._mean_slope(at, mean, covariance, unclear)[1])(params)
        moved = jnp.einsum("ijkc,jbkc,ba->ia", turn, doubt, covariance)
        return self.mean_fitted(params, mean, covariance, unclear) + moved

    def _mean_slope(self, params, mean, covariance, unclear):
        """Means of the probabilities and of their slope in the logits, over normal rows."""
        spread = params @ covariance @ params.T + unclear
        # Rows of weights may be linearly dependent.
        spread += (1e-8 + 1e-9 * jnp.trace(spread)) * jnp.eye(self.n_rows)
        nodes, weights = normal_nodes(self.n_rows)
        logits = params @ mean + nodes @ jnp.linalg.cholesky(spread).T
        p = jax.vmap(self.probabilities)(logits)
        return weights @ p, jnp.diag(weights @ p) - (p * weights[:, None]).T @ p

    def identified(self) -> np.ndarray | None:
        """Basis of the contrasts of classes; None: with two classes the weights are contrasts.

        A vector added to the weights of all classes changes no probability.
        """
        if self.n_rows == 1:
            return None
        return np.kron(helmert(self.n_rows).T, np.eye(self.n_columns))

    def prior_degrees(self) -> Params | None:
        """Degrees of freedom of the prior of each weight; None: all priors are normal."""
        if self.prior_df is None:
            return None
        return jnp.broadcast_to(
            jnp.asarray(self.prior_df, jnp.float32), (self.n_rows, self.n_columns)
        )

    def prior_common_scale(self) -> Params | None:
        """Mask of the weights whose priors have the common scale factor; None if none has."""
        if self.common_scale is None:
            return None
        return jnp.broadcast_to(
            jnp.asarray(self.common_scale, jnp.float32), (self.n_rows, self.n_columns)
        )

    def prior_precision(self) -> Params:
        """Inverse variance of the prior (Student t: inverse squared scale) of each weight."""
        return jnp.broadcast_to(
            jnp.asarray(self.prior_scale, jnp.float32) ** -2, (self.n_rows, self.n_columns)
        )

    def _logits(self, params, record):
        return (params @ record["x"]).astype(jnp.float32)

    @staticmethod
    def _length(record):
        grid = grid_of(record)
        return jnp.sqrt(jnp.sum(record["x"] ** 2)) if grid is None else grid.length

    def _row_classes(self):
        return jnp.arange(1, 2) if self.n_rows == 1 else jnp.arange(self.n_classes)

    def probabilities(self, logits):
        """Probabilities of the classes that have weights; logits are on the last axis."""
        return jax.nn.sigmoid(logits) if self.n_rows == 1 else jax.nn.softmax(logits)

    def _known(self, label):
        return (label >= 0) & (label < self.n_classes)
