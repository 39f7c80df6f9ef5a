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
from skdpbayes.pytrees import pytree


@pytree
@dataclass(frozen=True)
class NormalRows:
    """Simulated rows in place of `n_records` records.

    Attributes
    ----------
    standard : array of shape (n, n_columns)
        `standard_rows`.
    n_records : float
        Public number of records; infinite where the model has a released one.
    """

    standard: Array
    n_records: Number

    def of(self, model: Model) -> Expected:
        """Rows in the coordinates of a model whose last column is constant."""
        if not isinstance(model, InCoordinates):
            raise TypeError("Simulated rows need a model in whitened coordinates.")
        records, rows, share = model.simulated(self.standard)
        n = jnp.minimum(self.n_records, model.n_records)
        return Expected(model, records, rows, n * share)


@pytree
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
        weights = self.weights(params, norm)
        if longest is not None:
            p = self.probabilities(params)
            slope = jnp.sqrt(jnp.sum(_slopes(p, _squares(p)) ** 2, (1, 2)))
            length = weights * slope * jnp.sum(self.rows**2, axis=1)
            weights = weights * jnp.minimum(1, longest / length)
        return self.slopes(params, weights)

    def slopes(self, params: Params, weights: jax.Array) -> jax.Array:
        """Sum of curvatures with weights of shape (n,), (P, P)."""
        p = self.probabilities(params)
        return _sum(self.rows, (self.share * weights)[:, None, None] * _slopes(p, _squares(p)))

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
        return _products(self.rows, covariance)

    def logit_variance(self, covariance: jax.Array) -> jax.Array:
        """Mean variance of a logit (`deviation_variance`)."""
        share = jnp.broadcast_to(self.share, len(self.rows))
        spread = jnp.average(self.logit_covariances(covariance), axis=0, weights=share)
        return deviation_variance(spread)

    def bends(self, params: Params, nodes: AtNodes, weights: jax.Array) -> Bends:
        """How the sum of scores bends about uncertain parameters."""
        p, at, weights = nodes.probabilities, self.probabilities(params), self.share * weights
        change = _slopes(nodes.mean, nodes.product(p, p)) - _slopes(at, _squares(at))
        slope = _sum(self.rows, weights[:, None, None] * change)
        return Bends(self.rows, weights, slope, nodes)

    def at_nodes(self, params: Params, covariance: jax.Array) -> AtNodes:
        """Probabilities at nodes of the rows' logits, under normal parameters.

        A program must have one call: two batches of Cholesky factors at once may wait for each
        other's threads on a machine with few.
        """
        spread = self.logit_covariances(covariance)
        # Rows of weights may be linearly dependent.
        small = 1e-9 * (1 + jnp.trace(spread, axis1=1, axis2=2))
        root = jnp.linalg.cholesky(spread + small[:, None, None] * jnp.eye(len(params)))
        nodes, weights = normal_nodes(len(params), 33, 128)
        logits = self.rows @ params.T + jnp.einsum("nij,mj->mni", root, nodes)
        return AtNodes(jnp.asarray(weights), self.model.model.probabilities(logits))


class AtNodes(NamedTuple):
    """Weights of m nodes of the rows' logits, (m,), and probabilities there, (m, n, n_rows)."""

    shares: jax.Array
    probabilities: jax.Array

    @property
    def mean(self) -> jax.Array:
        """Probabilities averaged over normal parameters, (n, n_rows)."""
        return jnp.tensordot(self.shares, self.probabilities, 1)

    def product(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Averages of the products of two vectors at the nodes, (n, n_rows, n_rows)."""
        return jnp.einsum("m,mni,mnj->nij", self.shares, x, y)


class Bends(NamedTuple):
    """Sums of scores about uncertain parameters, beyond their slope at the mean.

    Attributes
    ----------
    rows : array of shape (n, p)
    weights : array of shape (n,)
        Of the rows in the sum.
    slope : array of shape (P, P)
        Mean slope, over that at the mean.
    nodes : AtNodes
    """

    rows: jax.Array
    weights: jax.Array
    slope: jax.Array
    nodes: AtNodes

    def turned(self, moved: jax.Array, missed: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Two sums over rows: of bends, and of how slopes turn.

        Derivatives of probabilities by logits are averaged over the nodes. The second is contracted
        with M, the third with M and the second with v.

        Parameters
        ----------
        moved : array of shape (P, P)
            M of a row is the block-wise product of this with it.
        missed : array of shape (P,)
            v of a row is the product of each block with it.

        Returns
        -------
        arrays of shapes (P,) and (P, P)
        """
        shares, p = self.nodes
        product = self.nodes.product
        moves = _products(self.rows, moved)
        moves = (moves + jnp.swapaxes(moves, 1, 2)) / 2
        wanted = self.rows @ missed.reshape(p.shape[2], -1).T
        # With S = diag(p) - p p' the slope, the second derivative times v is that of S along S v,
        # and that contracted with M is q.
        along = p * (wanted - jnp.sum(p * wanted, axis=2, keepdims=True))
        through = jnp.einsum("nij,mnj->mni", moves, p)
        whole = jnp.sum(p * through, axis=2, keepdims=True)
        own = jnp.diagonal(moves, axis1=1, axis2=2)
        level = jnp.sum(p * own, axis=2, keepdims=True)
        q = p * (own - 2 * through - level + 2 * whole)

        # S M S is P (M - 1 a' - a 1' + p'a) P, with a = M p and P = diag(p).
        crossed = product(p * (through - whole / 2), p)
        squared = moves * product(p, p) - crossed - jnp.swapaxes(crossed, 1, 2)
        net = along - q
        outer = product(net, p)
        turn = jax.vmap(jnp.diag)(jnp.einsum("m,mni->ni", shares, net))
        turn = turn - outer - jnp.swapaxes(outer, 1, 2) + 2 * squared
        bend = self.weights[:, None] * jnp.einsum("m,mni->ni", shares, q)
        return (bend.T @ self.rows).ravel(), _sum(self.rows, self.weights[:, None, None] * turn)


def _squares(p: jax.Array) -> jax.Array:
    return p[:, :, None] * p[:, None, :]


def _slopes(p: jax.Array, squares: jax.Array) -> jax.Array:
    """Slopes ``diag(p) - p p'`` of probabilities by logits, (n, n_rows, n_rows)."""
    return jax.vmap(jnp.diag)(p) - squares


def _products(rows: jax.Array, matrix: jax.Array) -> jax.Array:
    """Products of each row with the blocks of a (P, P) matrix, (n, n_rows, n_rows)."""
    p = rows.shape[1]
    k = len(matrix) // p
    blocks = matrix.reshape(k, p, k, p)
    return jnp.einsum("iajb,na,nb->nij", blocks, rows, rows, optimize="optimal")


def _sum(rows: jax.Array, matrices: jax.Array) -> jax.Array:
    """Sum of Kronecker products of each row's (n_rows, n_rows) matrix with its square, (P, P)."""
    size = matrices.shape[1] * rows.shape[1]
    one = jnp.einsum("nij,na,nb->iajb", matrices, rows, rows, optimize="optimal")
    return one.reshape(size, size)
