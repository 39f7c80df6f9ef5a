"""Hierarchical logistic regression in coordinates in which groups and columns are about alike.

The weights of all groups are those of one logistic regression whose row is x in the place of its
group, and zero elsewhere. One opening releases the second moments of x and the sizes of the groups.
Rows of the groups are taken to have the same second moments: where they have others, that costs
efficiency, as errors of the axes do in `skdpbayes.models.whitened`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.interpolate import make_interp_spline
from scipy.special import expit

from skdpbayes.mechanism.spec import Block
from skdpbayes.models.base import Opening, double
from skdpbayes.models.denoising import kept
from skdpbayes.models.logistic import LogisticRegression
from skdpbayes.models.protocols import Array, Contribution, Number, Params, Record
from skdpbayes.models.quadrature import normal_nodes
from skdpbayes.models.standard_rows import normal_rows, standard_rows
from skdpbayes.models.whitened import (
    InCoordinates,
    Mapped,
    moments_opening,
    no_count,
    number_of_moments,
    whitening_axes,
    with_count,
)
from skdpbayes.posteriors.base import Posterior
from skdpbayes.posteriors.evidence import NormalLikelihood
from skdpbayes.posteriors.hierarchy import Levels, linearised
from skdpbayes.pytrees import pytree

if TYPE_CHECKING:
    from skdpbayes.models.numpyro.reduced import Reduced

_LEAST_SHARE, _NO_SHARE = 0.2, 1e-3  # of a group, over the mean: for its axes, and of records
_SIZES = 0.2  # budget share of the sizes of groups, in the opening
_LEAST_ROWS = 512  # of all groups, and as many mirrored ones
_WIDEST = 50.0  # standard deviation of logits that the nodes of `normal_nodes` serve
_SPREADS = np.linspace(-4, 4, 24)  # hyper-parameters, whose prior is about standard normal


class Prior(NamedTuple):
    """Normal priors of the weights of all groups, at nodes of the spread of groups.

    Attributes
    ----------
    coordinates : array of shape (P, P)
        From the weights to the coordinates of `Reduced`.
    precisions : array of shape (n, P, P)
        Of those coordinates.
    logs : array of shape (n,)
        Logarithms of their probabilities and of the roots of their determinants.
    """

    coordinates: Array
    precisions: Array
    logs: Array


def prior_of(hierarchy: Reduced) -> Prior:
    """Priors of a hierarchy, by the spread of its groups."""
    slope, covariances, log_weights = hierarchy.priors(_SPREADS)
    logs = log_weights - np.linalg.slogdet(covariances)[1] / 2
    found = np.linalg.inv(slope), np.linalg.inv(covariances), logs
    return Prior(*(x.astype(np.float32) for x in found))


@pytree
@dataclass(frozen=True)
class GroupedCoordinates(InCoordinates):
    """`InCoordinates` of the weights of all groups, whose prior is that of a hierarchy.

    Attributes
    ----------
    shares : array of shape (n_groups,)
        Of the records, by group. Axes of groups with few are shorter than these say.
    hierarchy : Reduced
        The hierarchy in its own coordinates of the weights.
    prior : Prior
    """

    shares: Array
    hierarchy: Reduced
    prior: Prior

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return len(self.shares)

    @property
    def size(self) -> int:
        """Weights of a group."""
        return self.model.n_columns // self.n_groups

    def log_prior(self, params: Params) -> jax.Array:
        """Log density of the prior of the weights, up to a constant."""
        own = self.prior_axes() @ params.ravel()
        logs = double(self.prior.logs) - double(self.prior.precisions) @ own @ own / 2
        return jax.nn.logsumexp(logs)

    def prior_axes(self) -> jax.Array:
        """Matrix from the ravelled coordinates to those of the prior."""
        return jnp.matmul(double(self.prior.coordinates), double(self.axes))

    def expected_precision(self, mean: jax.Array, covariance: jax.Array) -> jax.Array:
        """Prior precision, averaged over spreads given the weights."""
        axes = self.prior_axes()
        square = axes @ (covariance + jnp.outer(mean, mean)) @ axes.T
        precisions = double(self.prior.precisions)
        logs = double(self.prior.logs) - jnp.sum(precisions * square, axis=(1, 2)) / 2
        return axes.T @ jnp.tensordot(jax.nn.softmax(logs), precisions, 1) @ axes

    def parameter_blocks(self) -> tuple[slice, ...]:
        """Weights of each group: no row is of two."""
        return tuple(slice(i * self.size, (i + 1) * self.size) for i in range(self.n_groups))

    def integrated(self, likelihood: NormalLikelihood) -> Posterior:
        """Posterior of the hierarchy, given the likelihood of the coordinates."""
        learnt = bool(self.hierarchy.parts.hyper)
        nodes = _SPREADS[:, None] if learnt else np.zeros((1, 0))
        lines = linearised(likelihood, self._levels(nodes), self._mean_scores(likelihood))

        def levels(hyper: np.ndarray) -> Levels:
            offset, slope = lines
            if learnt:
                near = hyper[:, 0].clip(_SPREADS[0], _SPREADS[-1])
                offset, slope = (make_interp_spline(_SPREADS, x, k=1)(near) for x in lines)
            at = self._levels(hyper)
            centre = offset + slope * at.centre
            return at._replace(centre=centre, slope=slope[:, :, None] * at.slope)

        return self.hierarchy.given_levels(likelihood, levels)

    def _levels(self, hyper: np.ndarray) -> Levels:
        """The coordinates, given hyper-parameters."""
        back, at = np.linalg.inv(np.asarray(self.axes, float)), self.hierarchy.levels(hyper)
        return at._replace(centre=at.centre @ back.T, slope=back @ at.slope)

    def _mean_scores(
        self, likelihood: NormalLikelihood
    ) -> Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Mean scores of normal rows, given means and variances of the coordinates; their slopes.

        Both are over the slope at the estimate, about which the likelihood is quadratic: there, the
        mean scores are the coordinates. Slopes are means over directions, and the constant column
        is one of them.
        """
        grid, weights = normal_nodes(1)
        # Rows of a group have the second moments of the identity over this (`constant`).
        constant = np.linalg.solve(np.asarray(self.axes, float), self.constant_row())
        sizes = np.square(constant).reshape(self.n_groups, self.size).sum(axis=1)

        def of(mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            square = (mean**2 + variance).reshape(self.n_groups, self.size).sum(axis=1)
            sd = np.sqrt(square / sizes)
            beyond = (sd / _WIDEST).clip(1)  # there, slopes are in proportion to the density at 0
            logits = (sd / beyond)[:, None] * grid[:, 0]
            weighted = expit(logits) * expit(-logits) * weights / beyond[:, None]
            # By Stein's lemma the mean of a score is that of its slope times the coefficients.
            secant, along = weighted.sum(axis=1), weighted @ grid[:, 0] ** 2 / beyond**2
            slope = ((self.size - 1) * secant + along) / self.size
            return np.repeat(secant, self.size), np.repeat(slope, self.size)

        estimate, averaged = likelihood.centre, likelihood.averaged
        assert estimate is not None
        secant, slope = of(estimate, np.zeros(len(estimate)) if averaged is None else averaged)
        shift = (slope - secant) * estimate

        def mean_score(mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            own_secant, own_slope = of(mean, variance)
            return (own_secant * mean + shift) / slope, own_slope / slope

        return mean_score

    def natural(self, posterior: Mapped) -> Mapped:
        """Refused: `integrated` has the parameters of the hierarchy."""
        raise TypeError("A hierarchy's posterior follows from its likelihood alone.")

    def constant_row(self) -> np.ndarray:
        """Weights whose product with each row is one."""
        return np.tile(np.eye(self.size)[-1], self.n_groups)

    def simulated(self, standard: Array) -> tuple[Record, jax.Array, jax.Array]:
        """As `InCoordinates.simulated`, of standard rows by group, (n_groups, n, size)."""
        n, last = standard.shape[1], jnp.eye(self.size)[-1]
        group = jnp.repeat(jnp.arange(self.n_groups), n)
        x = normal_rows(jnp.reshape(standard, (-1, self.size)), double(self._axes_of(0)), last)
        records = {"x": x, "group": group}
        rows = jax.vmap(lambda record: self._seen(record)["x"])(records)
        return records, rows, double(self.shares)[group] / n

    def _seen(self, record: Record) -> Mapping[str, Any]:
        group, x = record["group"], record["x"]
        own = jnp.sum(self._axes_of(group).astype(x.dtype) * x[:, None], axis=0)
        placed = jnp.zeros((self.n_groups, self.size), x.dtype).at[group].set(own)
        return {**record, "x": placed.ravel(), "grid": None}

    def _axes_of(self, group: Number) -> jax.Array:
        """Axes of a group; those of all groups are multiples of each other."""
        shape = self.n_groups, self.size
        return jnp.asarray(self.axes).reshape(*shape, *shape)[group, :, group]


@pytree
@dataclass(frozen=True)
class GroupedLogistic:
    """`OpenedModel` of a hierarchy, whose opening releases moments of rows and sizes of groups.

    Attributes
    ----------
    model : Reduced
        The hierarchy.
    prior : Prior
    rows : LogisticRegression
        Of the weights of all groups; its last column of each group is constant.
    n_groups : int
    row_norm : float
        Rows longer than this lose weight in the second moments.
    n_records : float
    counted : bool
        As in `WhitenedLogistic`.
    """

    model: Reduced
    prior: Prior
    rows: LogisticRegression
    n_groups: int = field(metadata={"static": True})
    row_norm: Number
    n_records: Number
    counted: bool = field(default=False, metadata={"static": True})

    @property
    def n_columns(self) -> int:
        """Weights of all groups."""
        return self.rows.n_columns

    @property
    def size(self) -> int:
        """Weights of a group."""
        return self.n_columns // self.n_groups

    def init(self) -> Params:
        """Coordinates before the release."""
        shares = np.full(self.n_groups, 1 / self.n_groups, np.float32)
        known = {"axes": np.eye(self.size, dtype=np.float32), "shares": shares}
        return known | (no_count() if self.counted else {})

    def openings(self) -> tuple[Opening]:
        """Sums of the weighted second moments of rows, and sizes of groups."""
        norm = jnp.asarray(self.row_norm, jnp.float32)

        def row(params: Params, record: Record) -> tuple[jax.Array, jax.Array]:
            del params
            return record["x"], self.rows.known(record)

        def learn(params: Params, moments: jax.Array, variance: jax.Array) -> Params:
            n = number_of_moments(self.n_records, params if self.counted else {})
            return {**params, "axes": whitening_axes(moments, variance, norm, n)}

        moments = moments_opening(norm, row, learn)

        def counts(record: Record) -> jax.Array:
            # A null record has a group, and entries that are no numbers.
            return jnp.isfinite(jnp.sum(record["x"])) & (self.rows.known(record) > 0)

        def statistics(params: Params) -> Callable[[Record], Mapping[str, Contribution]]:
            query = moments.statistics(params)

            def one(record: Record) -> Mapping[str, Contribution]:
                own = counts(record) & (record["group"] == jnp.arange(self.n_groups))
                return {**query(record), "sizes": own.astype(jnp.float32)}

            return one

        def update(
            params: Params, sums: Mapping[str, Any], scales: Mapping[str, jax.Array], key: jax.Array
        ) -> Params:
            sizes, variance = (x.astype(jnp.float64) for x in (sums["sizes"], scales["sizes"]))
            shares = _shares(sizes, variance**2).astype(jnp.float32)
            return {**moments.update(params, sums, scales, key), "shares": shares}

        (block,) = moments.blocks.values()
        blocks = {
            "moments": block._replace(share=1 - _SIZES),
            "sizes": Block(jnp.float32(1), _SIZES, together="mean"),
        }
        opening = Opening(statistics, blocks, update)
        return (with_count(opening, counts) if self.counted else opening,)

    def marginal(self, params: Params) -> GroupedCoordinates:
        """The model in the coordinates found."""
        shares = params["shares"]
        count = {name: params[name] for name in no_count() if self.counted}
        scale = 1 / jnp.sqrt(shares.clip(_LEAST_SHARE * shares.mean()))
        axes = jnp.kron(jnp.diag(scale), params["axes"])
        return GroupedCoordinates(self.rows, axes, shares, self.model, self.prior, **count)

    @property
    def rows_have_scale(self) -> bool:
        """Whether a constant column tells the scale of rows."""
        return self.rows.constant

    def standard_rows(self) -> np.ndarray:
        """Standard normal rows for each group."""
        least = -(-_LEAST_ROWS // self.n_groups)
        return np.stack([standard_rows(self.size, least, i) for i in range(self.n_groups)])


def _shares(sizes: jax.Array, variance: jax.Array) -> jax.Array:
    """Shares of groups, given noisy sizes: shrunk towards their mean, by the noise's part."""
    mean = jnp.maximum(sizes.mean(), jnp.sqrt(variance / len(sizes)))
    away = sizes - mean
    found = mean + kept(jnp.sum(away**2), len(sizes) - 1, variance)[0] * away
    found = found.clip(_NO_SHARE * mean)
    return found / found.sum()
