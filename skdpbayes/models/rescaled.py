"""Linear regression in coordinates in which columns have about unit second moments.

Public bounds that are ten times too loose make rows ten times too short: the noise of scores,
whose clipping norm suits the bounds, is then ten times too large, and that of curvatures a hundred
times. Openings find the units that the bounds do not tell (`docs/solvers/na-dpvi.md`):

1. Sums of sines and cosines of the columns and of the response (`columns`) tell where each lies and
   how wide it is, whatever the bounds are, and the number of records. Columns are centred and
   scaled.
2. Where noise would not hide them, the second moments of rows in these units, the constant column
   included. Their denoised inverse root gives the axes.

The prior is at least as wide as one in the units found. The curvature is released in the new
coordinates, so errors of the axes cost efficiency, not honesty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag
from jax.scipy.stats import norm

from skdpbayes.mechanism.spec import Block
from skdpbayes.models.base import NORM, Opening, double, released_count, single
from skdpbayes.models.columns import sizes_of_columns, waves
from skdpbayes.models.denoising import cautious_curvature, noise_edge
from skdpbayes.models.linear import Huber, LinearRegression
from skdpbayes.models.protocols import Array, Contribution, Number, Params, Record
from skdpbayes.models.whitened import moments_opening
from skdpbayes.posteriors.base import GaussianPosterior
from skdpbayes.pytrees import pytree

COLUMN_WAVES = 15  # they find columns as narrow as half their range over 12,000
WAVES_RESOLVED = 0.5  # error of an amplitude, from which on waves are not used
_TYPICAL = 3**0.5  # one over the root mean square of a column that is uniform on its bounds
_UNSURE = 2.0  # scale of coefficients where waves are not used, over that in units of the bounds
_LARGER = 2.0  # for responses, where the value is a bound
_WIDER = 2.0  # prior of the log variance, over that in units of the bounds
_HIDDEN = 0.6  # edge of the noise of second moments, from which on they are not used


@pytree
@dataclass(frozen=True)
class LinearInCoordinates(LinearRegression):
    """`LinearRegression` with weights ``w = A t``: the parameters are t and u, columns ``A' x``.

    Attributes
    ----------
    intercept : bool
        Whether the last column is constant.
    axes : array of shape (n_columns, n_columns)
        A.
    prior : array of shape (n_columns, n_columns)
        Precision of the prior of the coordinates.
    response : float
        Root mean square of responses about their centre, or more.
    row_norm : float
        Rows longer than this in the coordinates lose weight, so that no curvature is clipped.
    """

    intercept: bool = field(metadata={"static": True})
    axes: Array
    prior: Array
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

        A record's weight is inverse to it: the weighted curvature of a long row is then hardly
        larger than that of a row of `row_norm`, and so is its score, wherever it is cut.
        """
        seen, most = self._seen(record), jnp.asarray(self.row_norm)
        ordinary = super().score_bound(params, {"x": most[None]})
        long = ordinary * jnp.sum(seen["x"] ** 2) / most**2
        return jnp.maximum(super().score_bound(params, seen), long)

    def huber_of(self, x: jax.Array) -> Huber:
        """Where residuals of a row of coordinates are cut: farther out where it is long.

        Its prediction is as much less certain, and the weight that its curvature needs leaves room:
        its score is no longer for it than one of a row of `row_norm`.
        """
        length = jnp.sqrt(jnp.sum(x**2)) / self.row_norm
        return Huber.moments(self.huber.cut * jnp.maximum(length, 1), norm)

    def init(self) -> Params:
        """Centre of the normal prior, given that no variance is larger than that of responses."""
        start, most = super().init(), 2 * jnp.log(self.response) / self.unit
        return {**start, "u": jnp.minimum(start["u"], most.astype(jnp.float32))}

    def prior_precision(self) -> Params:
        """Precision of the prior of u and of `prior_axes` times the coordinates."""
        own = super().prior_precision()["u"] / _WIDER**2
        return {"u": own, "w": jnp.ones(self.n_columns, jnp.float32)}

    def prior_axes(self) -> jax.Array:
        """Root of the prior precision of u and the coordinates.

        `RescaledLinear` makes it of two: the weights' own, and what the size of responses says. In
        whitened coordinates ``|t|^2`` is the mean square of ``w'x``, and that of responses is no
        smaller. The normal stand-in for this bound gives a constant prediction the variance of the
        bound, and the other coordinates four equal parts of it.
        """
        root = jnp.linalg.cholesky(jnp.asarray(self.prior, jnp.float64)).T
        return block_diag(jnp.ones((1, 1)), root)

    def natural(self, posterior: GaussianPosterior) -> GaussianPosterior:
        """Posterior of u and the weights, given that of u and the coordinates."""
        axes = np.eye(1 + self.n_columns)
        axes[1:, 1:] = self.axes
        return posterior.mapped(axes)

    def _seen(self, record: Record) -> Mapping[str, Any]:
        x = record["x"]
        return {**record, "x": jnp.asarray(self.axes, x.dtype).T @ x, "grid": None}


@pytree
@dataclass(frozen=True)
class RescaledLinear:
    """`OpenedModel` that releases waves of columns, and then perhaps second moments.

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
        Public number of records (of persons, where they have several rows); infinite where it is
        private.
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
        eye = jnp.eye(self.model.n_columns, dtype=jnp.float32)
        none = jnp.asarray(jnp.inf, jnp.float32)
        own = jnp.diag(self.model.prior_precision()["w"])
        found = {"axes": eye, "own": own, "bound": 0 * eye}
        return found | {"response": none, "constant": none, "n": jnp.ones((), jnp.float32)}

    def openings(self) -> tuple[Opening, ...]:
        """Waves of columns and responses; sum of the weighted second moments, if `whitened`."""
        return (self._scales(), self._moments()) if self.whitened else (self._scales(),)

    def marginal(self, params: Params) -> LinearInCoordinates:
        """The model in the coordinates found."""
        own = {one.name: getattr(self.model, one.name) for one in fields(LinearRegression)}
        return LinearInCoordinates(
            **own,
            intercept=self.intercept,
            axes=params["axes"],
            prior=params["own"] + params["bound"],
            response=params["response"],
            row_norm=self.row_norm * self.reach,
        )

    def _scales(self) -> Opening:
        d = self.n_features

        def statistics(params: Params) -> Any:
            del params

            def one(record: Record) -> Mapping[str, Contribution]:
                x, y = record["x"][:d], record["y"][None]
                known = jnp.isfinite(y).all() & jnp.isfinite(x).all()
                rows, response = (
                    jnp.where(known, waves(jnp.where(known, z, 0), COLUMN_WAVES), 0) for z in (x, y)
                )
                return {"count": known.astype(x.dtype)[None], "rows": rows, "response": response}

            return one

        def update(params: Params, sums: Any, scales: Any, key: jax.Array) -> Params:
            del key
            sums, scales = double(sums), double(scales)
            # Of a person with several rows waves are sums, and moments are means.
            total = released_count(sums, scales)
            n = jnp.minimum(total, jnp.asarray(self.n_records, jnp.float64))
            x, y = (sizes_of_columns(sums[k], total, scales[k]) for k in ("rows", "response"))
            centre = x.centre if self.intercept else 0 * x.centre
            size = jnp.sqrt(x.size**2 + (x.centre - centre) ** 2)
            spread = _LARGER * (y.size * jnp.exp(y.doubt))[0]
            constant = jnp.abs(y.centre[0]) + spread

            eye = jnp.eye(self.model.n_columns)
            axes = eye.at[:d, :d].set(jnp.diag(1 / size))
            if self.intercept:
                axes = axes.at[-1, :d].set(-centre / size)
            # A weight may be as large as responses over the column. The intercept is the prediction
            # where columns have their centres.
            wide = jnp.ones(len(eye)).at[:d].set(jnp.minimum(1 / size, 1 / spread) ** 2)
            # Columns may be narrower than they seem.
            root = jnp.ones(len(eye)).at[:d].set(jnp.sqrt(x.least))
            response = spread if self.intercept else constant
            found = {
                "axes": axes,
                "own": jnp.diag(self.model.prior_precision()["w"] * wide),
                "bound": root[:, None] * self._bound(axes, response, constant) * root,
                "response": response,
                "constant": constant,
            }
            # With a private number of records the plan did not know that noise would hide waves.
            error = scales["rows"] / total * math.sqrt(COLUMN_WAVES * d)
            axes = eye.at[:d, :d].multiply(_TYPICAL)
            sure = eye.at[:d, :d].divide(_UNSURE**2)
            own = axes @ jnp.diag(self.model.prior_precision()["w"]) @ sure @ axes
            typical = {**self.init(), "axes": axes, "own": own}
            hidden = error > WAVES_RESOLVED
            kept = {k: jnp.where(hidden, typical[k], found[k]) for k in found}
            return single({**params, **kept, "n": n})

        blocks = {
            "count": Block(NORM, 0.1, "weight"),
            "rows": Block(NORM, 0.5, "statistic"),
            "response": Block(NORM, 0.4, "statistic"),
        }
        return Opening(statistics, blocks, update)

    def _moments(self) -> Opening:
        norm = jnp.asarray(self.row_norm, jnp.float32)

        def row(params: Params, record: Record) -> tuple[jax.Array, jax.Array]:
            return params["axes"].T @ record["x"], jnp.isfinite(record["y"])

        def learn(params: Params, moments: jax.Array, variance: jax.Array) -> Params:
            before, n = double(params), params["n"].astype(jnp.float64)
            values, vectors = jnp.linalg.eigh(cautious_curvature(moments, variance))
            change = vectors / jnp.sqrt(values / n)
            axes = before["axes"] @ change
            bound = self._bound(axes, before["response"], before["constant"])
            own = change.T @ before["own"] @ change
            hidden = noise_edge(len(axes), variance) > _HIDDEN * n
            found = {"axes": axes, "own": own, "bound": bound}
            kept = {k: jnp.where(hidden, before[k], found[k]) for k in found}
            return single({**params, **kept})

        return moments_opening(norm, row, learn)

    def _bound(self, axes: jax.Array, response: jax.Array, constant: jax.Array) -> jax.Array:
        """Precision that responses give coordinates whose rows have unit second moments.

        ``|t|^2`` is then the mean square of ``w'x``. `response` bounds responses about their
        centre, and `constant` a constant prediction.
        """
        inside, eye = max(1, self.n_features / 4) / response**2, jnp.eye(len(axes))
        if not self.intercept:
            return inside * eye
        along = jnp.linalg.solve(axes, eye[-1])
        along = along / jnp.linalg.norm(along)
        return inside * eye + (1 / constant**2 - inside) * jnp.outer(along, along)
