"""Hierarchical logistic regression in coordinates in which groups and columns are about alike.

The weights of all groups are those of one logistic regression whose row is x in the place of its
group, and zero elsewhere. One opening releases the second moments of x and the sizes of the groups.
Rows of the groups are taken to have the same second moments: where they have others, that costs
efficiency, as errors of the axes do in `skdpbayes.models.whitened`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import stats

from skdpbayes.models.base import Opening, double
from skdpbayes.models.logistic import LogisticRegression
from skdpbayes.models.protocols import Array, Number, Params, Record
from skdpbayes.models.standard_rows import normal_rows, standard_rows
from skdpbayes.models.whitened import InCoordinates, moments_opening, whitening_axes
from skdpbayes.posteriors.base import GaussianPosterior, Posterior
from skdpbayes.posteriors.evidence import NormalLikelihood

if TYPE_CHECKING:
    from skdpbayes.models.numpyro.reduced import Reduced

_LEAST_SHARE = 0.2  # of a group, over the mean
_SPREADS = 24  # of which the prior in the rounds is one


class Prior(NamedTuple):
    """Normal priors of the weights of all groups, one of which is right.

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
    covariances, log_shares = hierarchy.priors(_SPREADS)
    coordinates = np.linalg.inv(hierarchy.to_read())
    logs = log_shares - np.linalg.slogdet(covariances)[1] / 2
    found = coordinates, np.linalg.inv(covariances), logs
    return Prior(*(x.astype(np.float32) for x in found))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GroupedCoordinates(InCoordinates):
    """`InCoordinates` of the weights of all groups, whose prior is that of a hierarchy.

    Attributes
    ----------
    shares : array of shape (n_groups,)
        Of the records, by group.
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
        """Log density of the prior of the weights."""
        return jnp.sum(stats.norm.logpdf(self.prior_axes() @ params.ravel()))

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

    def posterior_given(self, likelihood: NormalLikelihood) -> Posterior:
        """Posterior of the hierarchy, given the likelihood of the coordinates."""
        axes = np.asarray(self.prior.coordinates, float) @ np.asarray(self.axes, float)
        own = likelihood.mapped(axes)
        assert own.centre is not None
        # About the estimate, with the information by which covariances are reported.
        slope = own.linear - own.information @ own.centre
        precision = own.reported + np.eye(len(axes))
        mean = np.linalg.solve(precision, slope + own.reported @ own.centre)
        return self.hierarchy.natural(GaussianPosterior.from_precision(mean, precision))

    def constant_row(self) -> jax.Array:
        """Weights whose product with each row is one."""
        return jnp.tile(jnp.eye(self.size)[-1], self.n_groups)

    def simulated(self, standard: Array) -> tuple[Record, jax.Array, jax.Array]:
        """As `InCoordinates.simulated`, of standard rows by group, (n_groups, n, size)."""
        n, shares = standard.shape[1], double(self.shares)
        group = jnp.repeat(jnp.arange(self.n_groups), n)
        # Axes of groups are multiples of common ones.
        axes = double(self._axes_of(0)) * jnp.sqrt(shares[0])
        x, rows = normal_rows(double(standard).reshape(-1, self.size), axes, jnp.eye(self.size)[-1])
        placed = jax.vmap(self._placed)(group, rows / jnp.sqrt(shares[group])[:, None])
        return {"x": x, "group": group}, placed, shares[group] / n

    def _seen(self, record: Record) -> Mapping[str, Any]:
        group, x = record["group"], record["x"]
        own = jnp.sum(self._axes_of(group).astype(x.dtype) * x[:, None], axis=0)
        return {**record, "x": self._placed(group, own), "grid": None}

    def _axes_of(self, group: Number) -> jax.Array:
        shape = self.n_groups, self.size
        return jnp.asarray(self.axes).reshape(*shape, *shape)[group, :, group]

    def _placed(self, group: jax.Array, own: jax.Array) -> jax.Array:
        """Row of all groups, zero in the place of the others."""
        return jnp.zeros((self.n_groups, len(own)), own.dtype).at[group].set(own).ravel()


@jax.tree_util.register_dataclass
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
        Public number of records.
    """

    model: Reduced
    prior: Prior
    rows: LogisticRegression
    n_groups: int = field(metadata={"static": True})
    row_norm: Number
    n_records: Number

    @property
    def n_columns(self) -> int:
        """Weights of all groups."""
        return self.rows.n_columns

    def init(self) -> Params:
        """Coordinates before the release."""
        size = self.n_columns // self.n_groups
        shares = np.full(self.n_groups, 1 / self.n_groups, np.float32)
        return {"axes": np.eye(size, dtype=np.float32), "shares": shares}

    def openings(self) -> tuple[Opening]:
        """Sum of the weighted second moments of a row and of its group."""
        norm = jnp.asarray(self.row_norm, jnp.float32)
        size = self.n_columns // self.n_groups

        def row(params: Params, record: Record) -> tuple[jax.Array, jax.Array]:
            del params
            group = norm * (record["group"] == jnp.arange(self.n_groups))
            return jnp.concatenate([record["x"], group]), self.rows.known(record)

        def learn(params: Params, moments: jax.Array, variance: jax.Array) -> Params:
            del params
            axes = whitening_axes(moments[:size, :size], variance, norm)
            counts = jnp.diag(moments)[size:] / norm**2
            shares = _shares(counts, 2 * variance / norm**4)
            return {"axes": axes, "shares": shares.astype(jnp.float32)}

        return (moments_opening(2**0.5 * norm, row, learn),)

    def marginal(self, params: Params) -> GroupedCoordinates:
        """The model in the coordinates found."""
        shares = params["shares"]
        axes = jnp.kron(jnp.diag(1 / jnp.sqrt(shares)), params["axes"])
        return GroupedCoordinates(self.rows, axes, shares, self.model, self.prior)

    @property
    def rows_have_scale(self) -> bool:
        """Whether a constant column tells the scale of rows."""
        return self.rows.constant

    def standard_rows(self) -> np.ndarray:
        """Standard normal rows for each group."""
        size = self.n_columns // self.n_groups
        least = -(-512 // self.n_groups)
        return np.stack([standard_rows(size, least, seed) for seed in range(self.n_groups)])


def _shares(counts: jax.Array, variance: jax.Array) -> jax.Array:
    """Shares of groups, given noisy sizes: shrunk towards the mean by the noise's share."""
    mean = jnp.maximum(counts.mean(), jnp.sqrt(variance / len(counts)))
    away = counts - mean
    told = (1 - variance / jnp.mean(away**2).clip(1e-30)).clip(0, 1)
    sizes = (mean + told * away).clip(_LEAST_SHARE * mean)
    return sizes / sizes.sum()
