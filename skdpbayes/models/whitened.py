"""Logistic regression in coordinates in which the columns have about unit second moments.

A score released with noise of one size in every direction leaves an error in the logits
proportional to ``(sum of b) (sum of 1 / b)``, b the curvatures of the directions: least when all
are equal (`docs/solvers/na-dpvi.md`). One opening releases the second moments of the rows, the
constant column included; its denoised inverse root gives the axes. Given the axes, everything is
as before: the prior stays that of the coefficients, and the curvature is released in the new
coordinates, so errors of the axes cost efficiency, not honesty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag

from skdpbayes.mechanism.contributions import Quadratic
from skdpbayes.mechanism.spec import Block
from skdpbayes.models.base import NORM, Opening, double, released_count, single
from skdpbayes.models.denoising import (
    cautious_curvature,
    kept,
    mean_curvature_error,
    share_told,
    shrunk_products,
)
from skdpbayes.models.logistic import LogisticRegression
from skdpbayes.models.protocols import Array, Contribution, Number, Params, Record
from skdpbayes.models.standard_rows import deviation_variance, normal_rows, standard_rows
from skdpbayes.posteriors.base import DrawsPosterior, GaussianPosterior
from skdpbayes.posteriors.evidence import NormalLikelihood
from skdpbayes.pytrees import pytree

_COUNT, _COUNT_SHARE = ("n_records", "count_variance"), 0.2  # what is released of a private number
_LEAST_MOMENT = 1e-5  # of a direction, over the largest
_TINY = 1e-30
_SHORT = 0.25  # mean square of the norm of rows, over the square of the public one
Mapped = TypeVar("Mapped", GaussianPosterior, DrawsPosterior, NormalLikelihood)


@pytree
@dataclass(frozen=True)
class InCoordinates:
    """`LogisticRegression` with weights ``W = T A'``: the parameters are T, the columns ``A' x``.

    Attributes
    ----------
    model : LogisticRegression
    axes : array of shape (n_columns, n_columns)
        A. (With fewer columns, as `closing` has them, scores are those of a regression on these.)
    row_axes : array of shape (n_columns, n_columns), optional
        Inverse root of the likeliest second moments of rows, up to a factor. None: A.
    moment_error : float
        Variance of the error of a column's second moment, over the square of the constant one's.
    n_records : float
        Released number of records; infinite where it is public.
    count_variance : float
        Of the noise in it, over its square.
    """

    model: LogisticRegression
    axes: Array
    row_axes: Array | None = field(default=None, kw_only=True)
    moment_error: Number = field(default=0.0, kw_only=True)
    n_records: Number = field(default=np.inf, kw_only=True)
    count_variance: Number = field(default=0.0, kw_only=True)

    def init(self) -> Params:
        """Zero weights."""
        return self.model.init()

    def log_prior(self, params: Params) -> jax.Array:
        """Log density of the prior of the weights."""
        return self.model.log_prior(params @ jnp.asarray(self.axes, params.dtype).T)

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Log-likelihood of one record; zero for a null record."""
        return self.model.log_likelihood(params, self._seen(record))

    def score(self, params: Params, record: Record) -> Contribution:
        """Gradient in the coordinates."""
        return self.model.score(params, self._seen(record))

    def curvature(self, params: Params, record: Record) -> Contribution:
        """Negative Hessian in the coordinates."""
        return self.model.curvature(params, self._seen(record))

    def score_bound(self, params: Params, record: Record) -> jax.Array:
        """Largest norm of a score over all labels."""
        return self.model.score_bound(params, self._seen(record))

    def largest_weight(self, record: Record) -> jax.Array:
        """Weight at which a long row has the squared length of a row of `row_norm`."""
        return self.model.largest_weight(record)

    def prior_precision(self) -> Params:
        """Diagonal of the prior precision of the weights (see `prior_axes`)."""
        return self.model.prior_precision()

    def prior_degrees(self) -> Params | None:
        """Degrees of freedom of the priors of the weights."""
        return self.model.prior_degrees()

    def prior_common_scale(self) -> Params | None:
        """Mask of the weights whose priors have a common scale factor."""
        return self.model.prior_common_scale()

    def identified(self) -> np.ndarray | None:
        """Basis of the contrasts of classes, which have the same coordinates."""
        return self.model.identified()

    def prior_axes(self) -> jax.Array:
        """Matrix from the ravelled coordinates to the ravelled weights."""
        axes = double(self.axes)
        return block_diag(*([axes] * self.model.n_rows))

    def natural(self, posterior: Mapped) -> Mapped:
        """Posterior (or likelihood) of the weights, given that of the coordinates."""
        return posterior.mapped(np.kron(np.eye(self.model.n_rows), np.asarray(self.axes, float)))

    def moments(self) -> np.ndarray:
        """Second moments of the rows, for all weights: block diagonal.

        That of a constant column is one.
        """
        axes = np.asarray(self.axes if self.row_axes is None else self.row_axes, np.float64)
        return np.kron(np.eye(self.model.n_rows), self._moments_of(np.linalg.inv(axes)))

    def _moments_of(self, back: Array) -> Array:
        """Second moments, given the inverse of their inverse root."""
        own = back.T @ back
        return own / own[-1, -1] if self.model.constant else own

    def error_along(self, directions: jax.Array) -> jax.Array:
        """Relative variance of the error of the rows' second moments along coordinates.

        Parameters
        ----------
        directions : array of shape (P, k)
            Of the ravelled coordinates.
        """
        if self.row_axes is None:
            return jnp.zeros(directions.shape[1])
        moments = self._moments_of(jnp.linalg.inv(double(self.row_axes)))
        weights = jnp.reshape(directions, (self.model.n_rows, -1, directions.shape[1]))
        weights = jnp.einsum("ij,ajk->aik", double(self.axes), weights)
        size = jnp.einsum("aik,bik->abk", weights, weights)
        moment = jnp.einsum("aik,ij,ajk->k", weights, moments, weights)
        return self.moment_error * jnp.sum(size**2, axis=(0, 1)) / moment**2

    def constant(self) -> jax.Array:
        """The constant column in the coordinates: ``z @ constant`` is one for every row z, (p,).

        By the axes alone, the rows' second moments are the identity over ``constant @ constant``.
        """
        return jnp.linalg.solve(double(self.axes), self.constant_row())

    def constant_row(self) -> np.ndarray:
        """Weights whose product with each row is one."""
        return np.eye(self.model.n_columns)[-1]

    def simulated(self, standard: Array) -> tuple[Record, jax.Array, jax.Array]:
        """Simulated records, their rows in the coordinates, and the share that each stands for.

        Parameters
        ----------
        standard : array of shape (n, n_columns)
            Standard normal.
        """
        axes = double(self.axes)
        own = axes if self.row_axes is None else double(self.row_axes)
        x = normal_rows(double(standard), own, self.constant_row())
        return {"x": x}, x @ axes, jnp.asarray(1 / len(x))

    def with_shrunk_logits(
        self, mean: jax.Array, covariance: jax.Array, shrinkage: Number
    ) -> jax.Array:
        """Ravelled coordinates whose logits vary less between rows.

        Their variation is divided by ``sqrt(1 + shrinkage v)``, where v is its variance under the
        covariance. The mean probability stays about the same.

        Parameters
        ----------
        mean : array of shape (P,)
        covariance : array of shape (P, P)
        shrinkage : float
        """
        p, k = self.model.n_columns, self.model.n_rows
        constant = self.constant()
        size = constant @ constant
        varying = jnp.eye(p) - jnp.outer(constant, constant) / size
        rows = mean.reshape(k, p)
        spread = rows @ varying
        unknown = deviation_variance(
            jnp.einsum("iajb,ab->ij", covariance.reshape(k, p, k, p), varying) / size
        )
        short = 1 / jnp.sqrt(1 + shrinkage * unknown.clip(0))
        # A logistic function averaged over normal logits of variance v is about that of their mean
        # over sqrt(1 + pi v / 8).
        bend = jnp.pi / 8 * deviation_variance(spread @ spread.T / size)
        means = jnp.sqrt((1 + short**2 * bend) / (1 + bend)) * (rows - spread)
        return (short * spread + means).ravel()

    def _seen(self, record: Record) -> Mapping[str, Any]:
        x = record["x"]
        return {**record, "x": jnp.asarray(self.axes, x.dtype).T @ x, "grid": None}


@pytree
@dataclass(frozen=True)
class WhitenedLogistic:
    """`OpenedModel` that releases second moments and takes their inverse root for axes.

    Attributes
    ----------
    model : LogisticRegression
    row_norm : float
        Rows longer than this lose weight in the second moments.
    n_records : float
        Public number of rows, or their largest number where records are persons; infinite where it
        is private.
    counted : bool
        Whether it is private, or that of persons, whose rows are then counted: released beside the
        moments.
    """

    model: LogisticRegression
    row_norm: Number
    n_records: Number
    counted: bool = field(default=False, metadata={"static": True})

    @property
    def n_rows(self) -> int:
        """Rows of W."""
        return self.model.n_rows

    @property
    def n_columns(self) -> int:
        """Columns of W."""
        return self.model.n_columns

    def init(self) -> Params:
        """Coordinates before the release."""
        axes = np.eye(self.model.n_columns, dtype=np.float32)
        rows = {"row_axes": axes, "moment_error": np.zeros((), np.float32)}
        found = {"axes": axes} | (rows if self.rows_have_scale else {})
        return found | (no_count() if self.counted else {})

    def openings(self) -> tuple[Opening]:
        """Sum of the weighted second moments."""
        norm = jnp.asarray(self.row_norm, jnp.float32)

        def row(params: Params, record: Record) -> tuple[jax.Array, jax.Array]:
            del params
            return record["x"], self.model.known(record)

        def learn(params: Params, moments: jax.Array, variance: jax.Array) -> Params:
            n = number_of_moments(self.n_records, params if self.counted else {})
            found = {"axes": whitening_axes(moments, variance, norm, n)}
            if not self.rows_have_scale:
                return found
            own, error = likeliest_axes(moments, variance, n)
            return found | {"row_axes": own, "moment_error": error}

        moments = moments_opening(norm, row, learn)
        return (with_count(moments, self.model.known) if self.counted else moments,)

    def marginal(self, params: Params) -> InCoordinates:
        """The model in the coordinates found."""
        return InCoordinates(self.model, **params)

    @property
    def rows_have_scale(self) -> bool:
        """Whether a constant column tells the scale of rows."""
        return self.model.constant

    def standard_rows(self) -> np.ndarray:
        """Standard normal rows, by which records are simulated."""
        return standard_rows(self.n_columns)


def whitening_axes(
    moments: jax.Array, variance: jax.Array, norm: jax.Array, n_records: Number = np.inf
) -> jax.Array:
    """Denoised inverse root of the released second moments of rows of `norm`.

    Parameters
    ----------
    moments : array of shape (p, p)
    variance : float64 scalar
        Of the noise of an entry off the diagonal.
    norm : float32 scalar
    n_records : float
        Their number; infinite where it is not known.
    """
    p, known = len(moments), drawn_moments(moments, variance)
    values, vectors = jnp.linalg.eigh(known)
    # Each row that is not short adds norm^2 to the trace. Where rows are far shorter, scores would
    # drown in the noise for rows of the norm.
    trace = jnp.trace(moments).clip(0) + 2 * jnp.sqrt(2 * p * variance)
    short = jnp.isfinite(n_records) & (trace < _SHORT * norm**2 * n_records)
    square = jnp.where(short, trace / n_records, norm**2)
    second = values * square / jnp.sum(values)
    return (vectors / jnp.sqrt(second)).astype(jnp.float32)


def drawn_moments(moments: jax.Array, variance: jax.Array) -> jax.Array:
    """Denoised second moments, drawn to a multiple of the identity.

    Axes that follow noise make curvatures unequal.
    """
    p = len(moments)
    mean = jnp.maximum(jnp.trace(moments) / p, mean_curvature_error(p, variance))
    centre = mean * jnp.eye(p)
    told = share_told(moments - centre, variance)
    return centre + told * (cautious_curvature(moments, variance) - centre)


def likeliest_axes(
    moments: jax.Array, variance: jax.Array, n_records: Number
) -> tuple[jax.Array, jax.Array]:
    """Inverse root of the likeliest second moments, up to a factor, and their error.

    The last column is constant. `whitening_axes` are drawn to the identity: rows of their moments
    would have too much of a column that noise nearly hides, such as that of a rare category.

    Parameters
    ----------
    moments, variance, n_records
        As of `whitening_axes`.

    Returns
    -------
    axes : float32 array of shape (p, p)
    error : float32 scalar
        As `InCoordinates.moment_error`.
    """
    # Long rows lose weight, so that the sum of weights is not their number. It is drawn to the
    # other sums of squares as far as noise may be all that tells it from them.
    squares, noise = jnp.diag(moments), 2 * variance
    told, _ = kept(_dispersion(squares), len(squares) - 1, noise)
    total = squares.mean() + told * (squares[-1] - squares.mean())
    total = total.clip(jnp.sqrt(noise) + _TINY, n_records)
    found, _ = shrunk_products(moments, variance, total, intercept=True)
    # Where noise hides how moments differ, they are as if all were equal.
    drawn = drawn_moments(moments, variance)
    found = drawn + told * (found - drawn)
    values, vectors = jnp.linalg.eigh(found)
    axes = vectors / jnp.sqrt(values.clip(_LEAST_MOMENT * values[-1]))
    left = kept(_dispersion(squares[:-1]), len(squares) - 2, noise)[1]
    return axes.astype(jnp.float32), (told**2 * left / total**2).astype(jnp.float32)


def _dispersion(x: jax.Array) -> jax.Array:
    return jnp.sum((x - x.mean()) ** 2)


def number_of_moments(n_records: Number, params: Params) -> jax.Array:
    """Number of records that released moments are of; infinite where it is not known.

    Moments of persons are means over rows, and what is known of a number is that of rows.

    Parameters
    ----------
    n_records : float
        As in `WhitenedLogistic`.
    params : dict
        With the count, if it is released.
    """
    public, (released, _) = jnp.asarray(n_records), _COUNT
    if released not in params:
        return public
    # Beside a public number it is that of the rows of persons.
    return jnp.where(jnp.isfinite(public), jnp.inf, params[released])


def no_count() -> Params:
    """What `with_count` releases, before."""
    return dict.fromkeys(_COUNT, np.ones((), np.float32))


def with_count(opening: Opening, known: Callable[[Record], jax.Array]) -> Opening:
    """Opening that releases the number of records too, for a part of its budget."""

    def statistics(params: Params) -> Callable[[Record], Mapping[str, Contribution]]:
        own = opening.statistics(params)
        return lambda record: {**own(record), "count": known(record).astype(jnp.float32)[None]}

    def update(
        params: Params, sums: Mapping[str, Any], scales: Mapping[str, jax.Array], key: jax.Array
    ) -> Params:
        total = released_count(sums, scales)
        variance = (scales["count"].astype(jnp.float64) / total) ** 2
        count = single(dict(zip(_COUNT, (total, variance), strict=True)))
        return {**opening.update({**params, **count}, sums, scales, key), **count}

    rest = 1 - _COUNT_SHARE
    blocks = {name: one._replace(share=rest * one.share) for name, one in opening.blocks.items()}
    return Opening(statistics, {**blocks, "count": Block(NORM, _COUNT_SHARE, "weight")}, update)


def moments_opening(
    norm: jax.Array,
    row: Callable[[Params, Record], tuple[jax.Array, jax.Array]],
    learn: Callable[[Params, jax.Array, jax.Array], Params],
) -> Opening:
    """Release of the sum of the second moments of rows; a longer row counts as one of `norm`.

    Parameters
    ----------
    norm : float32 scalar
    row : callable
        Row of a record, and one, or zero for a null record.
    learn : callable
        Parameters given those before, the symmetric noisy sum, and the variance of an entry.
    """

    def statistics(params: Params) -> Any:
        def one(record: Record) -> Mapping[str, Contribution]:
            own, known = row(params, record)
            weight = jnp.minimum(1, norm**2 / jnp.sum(own**2).clip(_TINY)) * known
            return {"moments": Quadratic(weight[None, None], own)}

        return one

    def update(params: Params, sums: Any, scales: Any, key: jax.Array) -> Params:
        del key
        moments = sums["moments"].astype(jnp.float64)[0, :, 0]
        variance = scales["moments"].astype(jnp.float64) ** 2 / 2
        return learn(params, (moments + moments.T) / 2, variance)

    return Opening(statistics, {"moments": Block(NORM * norm**2, together="mean")}, update)
