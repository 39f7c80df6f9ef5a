"""Linear regression in coordinates in which columns have about unit second moments.

Public bounds that are ten times too loose make rows ten times too short: the noise of scores,
whose clipping norm suits the bounds, is then ten times too large, and that of curvatures a hundred
times. Openings find the units that the bounds do not tell (`docs/solvers/na-dpvi.md`):

1. The sum of binary logarithms of the sizes of entries gives a scale of each column, whatever the
   bounds are. A logarithm has a bounded range, and an error of the scale is a factor.
2. Where noise would not hide them, the second moments of rows in these units, the constant column
   included. Their denoised inverse root gives the axes.

Given the axes, everything is as before: the prior stays that of the coefficients, and the
curvature is released in the new coordinates, so errors of the axes cost efficiency, not honesty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag

from skdpbayes.mechanism.spec import Block
from skdpbayes.models.base import NORM, Opening
from skdpbayes.models.denoising import cautious_curvature
from skdpbayes.models.linear import LinearRegression
from skdpbayes.models.protocols import Array, Contribution, Number, Params, Record
from skdpbayes.models.whitened import moments_opening
from skdpbayes.posteriors.base import GaussianPosterior

_LOWEST, _HIGHEST = -9.0, 1.0  # range of the logarithms; smaller entries count as none
_MIDDLE, HALF = (_LOWEST + _HIGHEST) / 2, (_HIGHEST - _LOWEST) / 2
_USUAL, _SPREAD = -2.0, 2.0  # mean logarithm of columns within their bounds, before the release
_ROOT_MEAN_SQUARE = 1.7  # over the geometric mean: 1.57 of uniform, 1.89 of normal columns
_LARGER = 2.0  # for responses, where the value is a bound


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearInCoordinates(LinearRegression):
    """`LinearRegression` with weights ``w = A t``: the parameters are t and u, columns ``A' x``.

    Attributes
    ----------
    intercept : bool
        Whether the last column is constant.
    axes : array of shape (n_columns, n_columns)
        A.
    response : float
        Root mean square of responses, or more.
    row_norm : float
        Rows longer than this in the coordinates lose weight, so that no curvature is clipped.
    """

    intercept: bool = field(metadata={"static": True})
    axes: Array
    response: Number
    row_norm: Number

    def log_prior(self, params: Params) -> jax.Array:
        """Log density of the prior of u and of the weights."""
        axes = jnp.asarray(self.axes, params["w"].dtype)
        return super().log_prior({**params, "w": axes @ params["w"]})

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Log-likelihood of one record, its residual unclipped."""
        return super().log_likelihood(params, self._seen(record))

    def score(self, params: Params, record: Record) -> Contribution:
        """Huber's estimating functions in the coordinates."""
        return super().score(params, self._seen(record))

    def curvature(self, params: Params, record: Record) -> Contribution:
        """Expected negative derivative of the score in the coordinates."""
        return super().curvature(params, self._seen(record))

    def score_bound(self, params: Params, record: Record) -> jax.Array:
        """Bound on the norm of a score over all responses, raised where rows are long.

        A record's weight is inverse to it: the weighted curvature of a long row is then no larger
        than that of a row of `row_norm`.
        """
        seen, norm = self._seen(record), jnp.asarray(self.row_norm)
        ordinary = super().score_bound(params, {"x": norm[None]})
        long = ordinary * jnp.sum(seen["x"] ** 2) / norm**2
        return jnp.maximum(super().score_bound(params, seen), long)

    def init(self) -> Params:
        """Centre of the normal prior, given that no variance is larger than that of responses."""
        start, most = super().init(), 2 * jnp.log(self.response) / self.unit
        return {**start, "u": jnp.minimum(start["u"], most.astype(jnp.float32))}

    def prior_precision(self) -> Params:
        """Precision of the prior of u and of `prior_axes` times the coordinates."""
        return {**super().prior_precision(), "w": jnp.ones(self.n_columns, jnp.float32)}

    def prior_axes(self) -> jax.Array:
        """Root of the prior precision of the coordinates, given the size of responses.

        In whitened coordinates ``|t|^2`` is the mean square of ``w'x``, and that of responses is no
        smaller. The normal stand-in for this bound gives a constant prediction the variance of the
        bound, and the other coordinates four equal parts of it.
        """
        axes = jnp.asarray(self.axes, jnp.float64)
        bound = 1 / jnp.asarray(self.response, jnp.float64) ** 2
        features = self.n_columns - self.intercept
        known = max(1, features / 4) * bound * jnp.eye(self.n_columns)
        if self.intercept:
            constant = jnp.linalg.solve(axes, jnp.eye(self.n_columns)[-1])
            constant = constant / jnp.linalg.norm(constant)
            known += (1 - max(1, features / 4)) * bound * jnp.outer(constant, constant)
        own = super().prior_precision()["w"].astype(jnp.float64)
        root = jnp.linalg.cholesky(axes.T @ (own[:, None] * axes) + known).T
        return block_diag(jnp.ones((1, 1)), root)

    def natural(self, posterior: GaussianPosterior) -> GaussianPosterior:
        """Posterior of u and the weights, given that of u and the coordinates."""
        axes = np.eye(1 + self.n_columns)
        axes[1:, 1:] = self.axes
        return posterior.mapped(axes)

    def _seen(self, record: Record) -> Mapping[str, Any]:
        x = record["x"]
        return {**record, "x": jnp.asarray(self.axes, x.dtype).T @ x, "grid": None}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RescaledLinear:
    """`OpenedModel` that releases the scales of columns, and then perhaps second moments.

    Attributes
    ----------
    model : LinearRegression
    intercept : bool
        Whether the last column is constant.
    whitened : bool
        Whether to release second moments.
    row_norm : float
        Norm of rows in the units found beyond which they lose weight in the second moments.
    reach : float
        Norm of rows in the coordinates beyond which they lose weight, over `row_norm`.
    n_records : float
        Public number of records.
    """

    model: LinearRegression
    intercept: bool = field(metadata={"static": True})
    whitened: bool = field(metadata={"static": True})
    row_norm: Number
    reach: Number
    n_records: Number

    @property
    def unit(self) -> Number:
        """Unit of the log variance."""
        return self.model.unit

    @property
    def n_features(self) -> int:
        """Columns that are not constant."""
        return self.model.n_columns - self.intercept

    def init(self) -> Params:
        """Coordinates before the releases."""
        axes = jnp.eye(self.model.n_columns, dtype=jnp.float32)
        return {"axes": axes, "response": jnp.asarray(jnp.inf, jnp.float32)}

    def openings(self) -> tuple[Opening, ...]:
        """Sum of logarithms; sum of the weighted second moments, if `whitened`."""
        return (self._scales(), self._moments()) if self.whitened else (self._scales(),)

    def marginal(self, params: Params) -> LinearInCoordinates:
        """The model in the coordinates found."""
        own = {one.name: getattr(self.model, one.name) for one in fields(LinearRegression)}
        row_norm = self.row_norm * self.reach
        return LinearInCoordinates(**own, intercept=self.intercept, row_norm=row_norm, **params)

    def _scales(self) -> Opening:
        d = self.n_features

        def statistics(params: Params) -> Any:
            del params

            def one(record: Record) -> Mapping[str, Contribution]:
                y = record["y"]
                known = jnp.isfinite(y)
                rows = jnp.where(known, _log_size(record["x"][:d]), 0)
                return {"rows": rows, "response": _log_size(jnp.where(known, y, 0))}

            return one

        def update(params: Params, sums: Any, scales: Any, key: jax.Array) -> Params:
            del params, key
            logs, response = (
                _MIDDLE + sums[name].astype(jnp.float64) / self.n_records
                for name in ("rows", "response")
            )
            noise, doubt = (
                (scales[name].astype(jnp.float64) / self.n_records) ** 2
                for name in ("rows", "response")
            )
            # Columns are shrunk to their mean, and means to those within bounds that fit.
            mean = jnp.mean(logs)
            common = _shrunk(mean, noise / d)
            spread = jnp.sum((logs - mean) ** 2) / max(d - 1, 1)
            kept = (1 - noise / spread.clip(1e-12)).clip(0, 1 / (1 + noise / _SPREAD**2))
            found = _ROOT_MEAN_SQUARE * 2.0 ** (common + kept * (logs - mean))
            ones = jnp.ones(self.model.n_columns - d)
            axes = jnp.diag(1 / jnp.concatenate([found, ones]))
            largest = _LARGER * 2.0 ** (_shrunk(response, doubt) + jnp.sqrt(doubt))
            return {
                "axes": axes.astype(jnp.float32),
                "response": largest.astype(jnp.float32),
            }

        blocks = {
            "rows": Block(NORM * jnp.float32(HALF * d**0.5), 0.5, "mean"),
            "response": Block(NORM * jnp.float32(HALF), 0.5, "mean"),
        }
        return Opening(statistics, blocks, update)

    def _moments(self) -> Opening:
        norm = jnp.asarray(self.row_norm, jnp.float32)

        def row(params: Params, record: Record) -> tuple[jax.Array, jax.Array]:
            return params["axes"].T @ record["x"], jnp.isfinite(record["y"])

        def learn(params: Params, moments: jax.Array, variance: jax.Array) -> Params:
            values, vectors = jnp.linalg.eigh(cautious_curvature(moments, variance))
            axes = params["axes"].astype(jnp.float64) @ (
                vectors / jnp.sqrt(values / self.n_records)
            )
            return {**params, "axes": axes.astype(jnp.float32)}

        return moments_opening(norm, row, learn)


def _log_size(x: jax.Array) -> jax.Array:
    """Binary logarithms about the middle of their range; zero for what is too small to count."""
    size = jnp.abs(x)
    seen = size > 2.0**_LOWEST
    return jnp.where(seen, jnp.minimum(jnp.log2(jnp.where(seen, size, 1)), _HIGHEST) - _MIDDLE, 0)


def _shrunk(mean: jax.Array, noise: jax.Array) -> jax.Array:
    """Mean logarithm given its noisy value; noise is a variance."""
    return _USUAL + (mean - _USUAL) / (1 + noise / _SPREAD**2)
