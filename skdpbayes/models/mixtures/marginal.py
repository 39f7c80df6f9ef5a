"""Gaussian mixtures with their labels summed out, for gradient solvers.

Parameters are coordinates relative to a start, in which each component is about standard normal.
Scores then have about unit size, and one clipping norm suits all coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.special import ndtri

from skdpbayes.mechanism.contributions import Quadratic, contribution_norms
from skdpbayes.models.protocols import Array, Contribution, Number, Params, Record
from skdpbayes.models.quadrature import uniform_nodes
from skdpbayes.posteriors.mixture_coordinates import (
    Coordinates,
    MarginalPosterior,
    MixtureCoordinates,
    contrasts,
    shapes,
    whitening,
)
from skdpbayes.pytrees import pytree

_FEWEST_NODES, _MOST_NODES = 2**12, 2**18
_RECORDS_OF_A_NODE = 4  # with 16 times as many errors are half of a standard deviation
_MOST_ENTRIES = 2**24  # of the scores of all nodes


def nodes_for(n_records: int | None, n_features: int, n_parameters: int) -> np.ndarray:
    """Quasi-random numbers that make rows for expectations.

    Parameters
    ----------
    n_records : int or None
        Public number of records; None, where it is private, counts as a million.
    n_features, n_parameters : int

    Returns
    -------
    nodes : float32 array of shape (m, n_features + 1)
        A uniform number and standard normal ones. Errors of the expectations are small beside those
        of the records.
    """
    wanted = (10**6 if n_records is None else n_records) / _RECORDS_OF_A_NODE
    most = min(_MOST_NODES, _MOST_ENTRIES // n_parameters)
    nodes = _FEWEST_NODES
    while nodes < wanted and 2 * nodes <= most:
        nodes *= 2
    return _nodes(n_features, nodes)


@cache  # each plan of a large table would take a tenth of a second
def _nodes(n_features: int, size: int) -> np.ndarray:
    uniform = uniform_nodes(n_features + 1, size)
    return np.concatenate([uniform[:, :1], ndtri(uniform[:, 1:])], axis=1)


@pytree
@dataclass(frozen=True)
class MarginalMixture:
    """Mixture of K normal distributions in d dimensions about a start.

    A record is ``{"x": (d,)}``.

    Attributes
    ----------
    kind : {"full", "tied", "diag", "spherical"}
    n_components, n_features : int
    concentration, precision, freedom : float
        Parameters of the priors: Dirichlet for weights, normal-inverse-Wishart for means and
        covariances.
    centre : array of shape (d,)
        Prior mean of the components' means.
    scatter : array of shape (K, d, d)
        Scatters of the inverse Wishart priors; those of tied components are equal.
    weights, mean, factor : arrays of shapes (K,), (K, d) and (K, d, d)
        The start; `factor` are inverses of the Cholesky factors of its covariances.
    errors : array of shape (3, K)
        Variances of the start's errors: of logarithms of weights, of means (each coordinate) and of
        whitened covariances (each entry).
    n_records : float
        Released number of rows.
    nodes : array of shape (m, d + 1)
        `nodes_for` the records.
    """

    kind: str = field(metadata={"static": True})
    n_components: int = field(metadata={"static": True})
    n_features: int = field(metadata={"static": True})
    concentration: Number
    precision: Number
    freedom: Number
    centre: Array
    scatter: Array
    weights: Array
    mean: Array
    factor: Array
    errors: Array
    n_records: Number
    nodes: Array

    def init(self) -> Coordinates:
        """The start itself."""
        zeros = (
            jnp.zeros(s, jnp.float32) for s in shapes(self.kind, self.n_components, self.n_features)
        )
        ratio = contrasts(self.n_components) @ jnp.log(self.weights)
        return Coordinates(*zeros)._replace(log_ratio=ratio.astype(jnp.float32))

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Log density of a row."""
        return jax.nn.logsumexp(self._joint(params, record)[0])

    def score(self, params: Params, record: Record) -> Contribution:
        """Gradient of `log_likelihood`: the components' gradients, weighted by responsibilities."""
        log_joint, v, y, factor = self._joint(params, record)
        r = jax.nn.softmax(log_joint)
        ry = r[:, None] * y
        log_scale = ry * jnp.diagonal(factor, axis1=1, axis2=2) * v - r[:, None]
        rows, columns = np.tril_indices(self.n_features, -1)
        lower = (-ry[:, :, None] * v[:, None, :])[:, rows, columns]
        if self.kind == "tied":
            log_scale, lower = (
                log_scale.sum(axis=0, keepdims=True),
                lower.sum(axis=0, keepdims=True),
            )
        elif self.kind == "spherical":
            log_scale = log_scale.sum(axis=1, keepdims=True)
        return Coordinates(
            log_ratio=contrasts(self.n_components) @ (r - jnp.exp(self._log_weights(params))),
            mean=(ry.ravel() @ jax.scipy.linalg.block_diag(*factor)).reshape(y.shape),
            log_scale=log_scale,
            lower=lower if params.lower.size else params.lower,
        )

    def curvature(self, params: Params, record: Record) -> Contribution:
        """Outer product of the score, positive semi-definite, with the curvature's expectation.

        It accounts for the information lost with the labels.
        """
        return Quadratic(jnp.ones((1, 1), jnp.float32), ravel_pytree(self.score(params, record))[0])

    def clipping_bias(self, params: Params, norm: jax.Array) -> Params:
        """Expected effect of clipping to `norm` on the sum of all scores, under this mixture.

        Clipping shortens the scores of rows in the tails, which determine the variances. Without
        clipping the expectation is zero.
        """
        scores, weights = self._expected(params, norm)
        bias = self.n_records * jnp.mean((weights - 1)[:, None] * scores, axis=0)
        return ravel_pytree(params)[1](bias)

    def information(self, params: Params, norm: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Expected curvature and covariance of the sum of all clipped scores.

        With scores ``w v``, w the factor of clipping: ``n E[w v v']`` and ``n E[w^2 v v']``.
        """
        scores, weights = self._expected(params, norm)
        clipped = weights[:, None] * scores
        return clipped.T @ scores * (self.n_records / len(scores)), clipped.T @ clipped * (
            self.n_records / len(scores)
        )

    def _expected(self, params, norm):
        """Scores of quasi-random rows from this mixture, and their factors of clipping."""
        factor, _ = self._whitening(params)
        above = jnp.cumsum(jnp.exp(self._log_weights(params)))[:-1]
        nodes = jnp.asarray(self.nodes)
        label = jnp.sum(nodes[:, :1] > above, axis=1)
        root = jnp.linalg.inv(factor @ self.factor)
        mean = self.mean + jnp.einsum("kij,kj->ki", jnp.linalg.inv(self.factor), params.mean)
        x = mean[label] + jnp.einsum("nij,nj->ni", root[label], nodes[:, 1:])
        scores = jax.vmap(lambda row: ravel_pytree(self.score(params, {"x": row}))[0])(x)
        return scores, jnp.minimum(1, norm / contribution_norms(scores))

    def _joint(self, params, record):
        """Log joint density with each component, and its parts.

        Matrices shared by records are multiplied first: over a batch these are few large products,
        not many small ones.
        """
        factor, log_scale = self._whitening(params)
        shift = jnp.einsum("kij,kj->ki", self.factor, self.mean) + params.mean
        v = jnp.concatenate(self.factor) @ record["x"] - shift.ravel()
        y = (
            jnp.concatenate(factor @ self.factor) @ record["x"]
            - jnp.einsum("kij,kj->ki", factor, shift).ravel()
        )
        v, y = v.reshape(shift.shape), y.reshape(shift.shape)
        log_det = jnp.log(jnp.diagonal(self.factor, axis1=1, axis2=2)).sum(axis=1) - log_scale.sum(
            axis=1
        )
        return self._log_weights(params) + log_det - jnp.sum(y**2, axis=1) / 2, v, y, factor

    def log_prior(self, params: Params) -> jax.Array:
        """Log prior of weights, means and covariances, with the Jacobians of the coordinates."""
        k, d = self.n_components, self.n_features
        factor, log_scale = self._whitening(params)
        pull = jnp.einsum("kij,kj->ki", self.factor, self.centre - self.mean) - params.mean
        pull = jnp.einsum("kij,kj->ki", factor, pull)
        half = jnp.einsum("kij,kjl->kil", factor, self.factor)
        scatter = jnp.einsum("kij,kjl,kil->", half, self.scatter, half)
        if self.kind in ("full", "tied"):
            # For lower triangular A, A'A has the volume element prod A_ii^i.
            freedom = self.freedom * (k if self.kind == "tied" else 1) - d + jnp.arange(1, d + 1)
        else:
            freedom = self.freedom * (d if self.kind == "spherical" else 1)
        return (
            self.concentration * self._log_weights(params).sum()
            - self.precision / 2 * jnp.sum(pull**2) - log_scale.sum()
            - scatter / 2 - jnp.sum(freedom * params.log_scale)
        )  # fmt: skip

    @jax.jit  # a program for each operation of a Hessian would take a second
    def prior_precision(self) -> Params:
        """Diagonal of the log prior's curvature at the start; it is positive."""
        flat, unravel = ravel_pytree(self.init())
        return unravel(-jnp.diagonal(jax.hessian(lambda v: self.log_prior(unravel(v)))(flat)))

    def prior_mean(self) -> Params:
        """Mean of the normal approximation with the prior's slope at the start."""
        slope = jax.grad(self.log_prior)(self.init())
        return jax.tree.map(lambda x, g, p: x + g / p, self.init(), slope, self.prior_precision())

    def start_variance(self) -> Params:
        """Variance of the start, at `init`, as an estimate of the parameters."""
        weights, means, entries = self.errors
        of = shapes(self.kind, self.n_components, self.n_features)
        entries = entries[: of.log_scale[0], None]
        return Coordinates(
            jnp.square(contrasts(self.n_components)) @ weights,
            jnp.broadcast_to(means[:, None], of.mean),
            jnp.broadcast_to(entries / 2, of.log_scale),
            jnp.broadcast_to(entries, of.lower),
        )

    def natural(self, posterior):
        """Posterior of weights, means and covariances, given that of the coordinates."""
        mean, factor = (np.asarray(x, np.float64) for x in (self.mean, self.factor))
        return MarginalPosterior(
            posterior, MixtureCoordinates(self.kind, mean, np.linalg.inv(factor))
        )

    def _log_weights(self, params):
        return jax.nn.log_softmax(params.log_ratio @ contrasts(self.n_components))

    def _whitening(self, params):
        return whitening(self.kind, self.n_components, self.n_features, params, jnp)
