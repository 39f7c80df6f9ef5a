"""What logistic regression expects of normal rows: scores and curvatures, clipping included.

Of released curvatures, small ones are hidden by noise and large ones are clipped, and scores are
not linear between the points of their release. Normal rows with the second moments by which the
axes of `InCoordinates` were made show all three: `na-dpvi` takes from them what the releases leave
open (``docs/solvers/na-dpvi.md``). They are simulated from public draws and released axes, and cost
no budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from skdpbayes.models.base import Model, unbiased_weight
from skdpbayes.models.protocols import Array, Number, Params, Record
from skdpbayes.models.quadrature import normal_nodes
from skdpbayes.models.standard_rows import deviation_variance
from skdpbayes.models.whitened import InCoordinates


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NormalRows:
    """Simulated rows in place of `n_records` records.

    Attributes
    ----------
    standard : array of shape (n, n_columns)
        `standard_rows`.
    n_records : float
        Public number of records.
    """

    standard: Array
    n_records: Number

    def of(self, model: Model) -> Expected:
        """Rows in the coordinates of a model whose last column is constant."""
        if not isinstance(model, InCoordinates):
            raise TypeError("Simulated rows need a model in whitened coordinates.")
        records, rows, share = model.simulated(self.standard)
        return Expected(model, records, rows, self.n_records * share)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Expected:
    """Sums over simulated rows, as they would be over the records.

    Attributes
    ----------
    model : InCoordinates
    records : dict of arrays of length n
        Without their labels.
    rows : array of shape (n, p)
        In the model's coordinates.
    share : array of shape () or (n,)
        Records for each simulated row.
    """

    model: InCoordinates
    records: Record
    rows: jax.Array
    share: jax.Array

    def weights(self, params: Params, norm: Number) -> jax.Array:
        """Weights of scores clipped to `norm`, (n,)."""
        clip = jnp.asarray(norm)
        return jax.vmap(lambda record: unbiased_weight(self.model, params, record, clip))(
            self.records
        )

    def probabilities(self, params: Params) -> jax.Array:
        """Of the classes that have weights, (n, n_rows)."""
        return self.model.model.probabilities(self.rows @ params.T)

    def curvature(
        self, params: Params, norm: Number, longest: ArrayLike | None = None
    ) -> jax.Array:
        """Sum of weighted curvatures, each clipped to `longest`, (P, P)."""
        p = self.probabilities(params)
        weight = jax.vmap(jnp.diag)(p) - p[:, :, None] * p[:, None, :]
        weight = weight * self.weights(params, norm)[:, None, None]
        if longest is not None:
            length = jnp.sqrt(jnp.sum(weight**2, (1, 2))) * jnp.sum(self.rows**2, axis=1)
            weight = weight * jnp.minimum(1, longest / length)[:, None, None]
        weight = weight * self.share[..., None, None]
        size = p.shape[1] * self.rows.shape[1]
        one = jnp.einsum("nij,na,nb->iajb", weight, self.rows, self.rows, optimize="optimal")
        return one.reshape(size, size)

    def variances(
        self, params: Params, norm: Number, longest: ArrayLike | None = None
    ) -> jax.Array:
        """Sums of the variances of weighted scores: their sum, and by parameter, (1 + P,).

        As released beside the curvature, and so clipped to `longest`.
        """
        p = self.probabilities(params)
        parts = (p * (1 - p) * self.weights(params, norm)[:, None] ** 2)[:, :, None]
        parts = (parts * self.rows[:, None] ** 2).reshape(len(p), -1)
        parts = jnp.concatenate([jnp.sum(parts, axis=1, keepdims=True), parts], axis=1)
        if longest is not None:
            length = jnp.sqrt(jnp.sum(parts**2, axis=1, keepdims=True) / 2)
            parts = parts * jnp.minimum(1, longest / length)
        return jnp.sum(self.share[..., None] * parts, axis=0)

    def scores(self, weights: jax.Array, asked: jax.Array, found: jax.Array) -> jax.Array:
        """Sums of scores at points with probabilities `asked`, labels having those `found`.

        Parameters
        ----------
        weights : array of shape (points, n)
        asked : array of shape (points, n, n_rows)
        found : array of shape (n, n_rows)

        Returns
        -------
        array of shape (points, P)
        """
        residuals = (self.share * weights)[:, :, None] * (found - asked)
        sums = jnp.einsum("tni,na->tia", residuals, self.rows, optimize="optimal")
        return sums.reshape(len(weights), -1)

    def logit_covariances(self, covariance: jax.Array) -> jax.Array:
        """Covariances of the rows' logits, given that of the parameters, (n, n_rows, n_rows)."""
        k, p = self.model.model.n_rows, self.rows.shape[1]
        blocks = covariance.reshape(k, p, k, p)
        return jnp.einsum("iajb,na,nb->nij", blocks, self.rows, self.rows, optimize="optimal")

    def logit_variance(self, covariance: jax.Array) -> jax.Array:
        """Mean variance of a logit (`deviation_variance`)."""
        share = jnp.broadcast_to(self.share, len(self.rows))
        spread = jnp.average(self.logit_covariances(covariance), axis=0, weights=share)
        return deviation_variance(spread)

    def bends(self, params: Params, covariance: jax.Array, weights: jax.Array) -> Bends:
        """How the sum of scores of two classes bends about uncertain parameters."""
        shares, p = self._at_nodes(params, covariance)
        p, at = p[:, :, 0], self.probabilities(params)[:, 0]
        slope = p * (1 - p)
        weights = self.share * weights
        change = weights * (shares @ slope - at * (1 - at))
        return Bends(
            self.rows,
            (self.rows * change[:, None]).T @ self.rows,
            weights * (shares @ (slope * (1 - 2 * p))),
            weights * (shares @ (slope * (1 - 6 * slope))),
        )

    def mean_probabilities(self, params: Params, covariance: jax.Array) -> jax.Array:
        """Probabilities averaged over normal parameters, (n, n_rows)."""
        return jnp.tensordot(*self._at_nodes(params, covariance), 1)

    def _at_nodes(self, params: Params, covariance: jax.Array) -> tuple[Array, jax.Array]:
        """Weights of m nodes, and the probabilities at them, (m, n, n_rows)."""
        spread = self.logit_covariances(covariance)
        # Rows of weights may be linearly dependent.
        small = 1e-9 * (1 + jnp.trace(spread, axis1=1, axis2=2))
        root = jnp.linalg.cholesky(spread + small[:, None, None] * jnp.eye(len(params)))
        nodes, weights = normal_nodes(len(params), 33)
        logits = self.rows @ params.T + jnp.einsum("nij,mj->mni", root, nodes)
        return weights, self.model.model.probabilities(logits)


class Bends(NamedTuple):
    """Sums of scores about uncertain parameters, beyond their slope at the mean.

    Attributes
    ----------
    rows : array of shape (n, P)
    slope : array of shape (P, P)
        Mean slope, over that at the mean.
    second, third : arrays of shape (n,)
        Mean derivatives of the weighted probabilities by the logits.
    """

    rows: jax.Array
    slope: jax.Array
    second: jax.Array
    third: jax.Array
