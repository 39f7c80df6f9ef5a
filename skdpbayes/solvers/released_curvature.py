"""Private curvature of the log-likelihood: what a round releases, and the average of the releases.

A record contributes its curvature (negative Hessian) times the weight of its score, with norms and
diagonals that give the mean weight, of all and of each coordinate. Shared by `dpvi` with a
full-rank guide, by `na-dpvi` and by `sgld`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from skdpbayes.mechanism.contributions import Quadratic, contribution_norm, scaled
from skdpbayes.mechanism.spec import Block
from skdpbayes.models.base import Model, curvature, like_vector, unbiased_weight
from skdpbayes.models.denoising import noise_edge
from skdpbayes.models.protocols import Contribution, Number, Params, Record
from skdpbayes.models.responses import fair_score, knows_responses
from skdpbayes.solvers.base import Query, Scales, Sums

_SMALL = 0.1  # edge of small noise's spectrum, over the mean eigenvalue
WEIGHT_SHARE = 0.05  # budget share, in curvature rounds, of the weights
_KEPT_ERRORS = 1.0  # standard errors by which the share that persons keep is shrunk towards 1
_LEAST_KEPT = 0.05
_VARIED = 0.25  # relative spread of the weights of coordinates about the mean weight
_LEAST_WEIGHT = 0.02
_PARTS = 3**0.5  # by which each of three parts is shortened that share a norm


class Curvature(NamedTuple):
    """Average of the released curvatures."""

    matrix: jax.Array  # (P, P)
    variance: jax.Array  # noise variance of one off-diagonal entry
    # Sums of the norms of the records' weighted curvatures, of these norms times the weights, and
    # of the diagonals times the weights; (2 + P,).
    weights: jax.Array
    weights_variance: jax.Array  # noise variance of one of them
    n: jax.Array  # number of releases
    kept_norms: jax.Array  # sum of the norms that shortened persons keep
    kept: jax.Array  # share of the curvature that they keep, by which `matrix` was divided

    @classmethod
    def none(cls, p: int) -> Curvature:
        """Before the first release."""
        zero = jnp.zeros((), jnp.float32)
        return cls(
            jnp.zeros((p, p), jnp.float32),
            zero,
            jnp.zeros(2 + p, jnp.float32),
            zero,
            jnp.zeros((), jnp.int32),
            zero,
            zero + 1,
        )

    def after(self, estimate: Sums, scales: Scales) -> Curvature:
        """Average with one more release; late rounds, nearer the optimum, have larger weights."""
        matrix = estimate["curvature"].reshape(self.matrix.shape)
        n = self.n + 1
        # Long averages serve to reduce noise. Early points are far from the optimum, and where the
        # noise is small that is the larger error.
        edge = noise_edge(len(matrix), scales["curvature"] ** 2 / 2)
        lateness = jnp.where(edge > _SMALL * jnp.trace(matrix) / len(matrix), 1, 3)
        new = (lateness + 1) / (n.astype(jnp.float32) + lateness)
        own = Curvature(
            matrix=(1 - new) * self.kept * self.matrix + new * (matrix + matrix.T) / 2,
            variance=(1 - new) ** 2 * self.kept**2 * self.variance
            + new**2 * scales["curvature"] ** 2 / 2,
            weights=(1 - new) * self.weights + new * estimate["weights"],
            weights_variance=(1 - new) ** 2 * self.weights_variance
            + new**2 * scales["weights"] ** 2,
            n=n,
            kept_norms=(1 - new) * self.kept_norms + new * estimate.get("kept", 0),
            kept=self.kept,
        )
        if "kept" not in estimate:
            return own
        error = _KEPT_ERRORS * own._error()
        share = (own.kept_norms + error) / (_PARTS * own.weights[0] + error).clip(1e-30)
        kept = share.clip(_LEAST_KEPT, 1)
        return own._replace(matrix=own.matrix / kept, variance=own.variance / kept**2, kept=kept)

    def mean_weight(self, *, towards: float, errors: float, least: float) -> jax.Array:
        """Mean weight of the records, shrunk `towards` a value and not below `least`.

        Shrinkage is by `errors` standard errors of the norms' sum.
        """
        norms, weighted = self.weights[:2]
        error = errors * self._error() + 1e-30
        return ((weighted + towards * error) / (norms.clip(0) + error)).clip(least, 1)

    def _error(self) -> jax.Array:
        """Standard deviation of the noise in `weights`."""
        return self.weights_variance**0.5


def sampling_weight(known: Curvature) -> jax.Array:
    """Mean weight of the records, shrunk towards 0.3 by its noise."""
    return known.mean_weight(towards=0.3, errors=0.1, least=_LEAST_WEIGHT)


def sampling_covariance(known: Curvature, h: jax.Array) -> jax.Array:
    """Covariance of the summed weighted scores over data sets, given their curvature.

    It is ``sum_i w_i^2 I_i`` where the curvature is ``sum_i w_i I_i``. Long rows have small weights
    and tell little of the intercept, say: the ratio of both is larger there than on average. It is
    known from the diagonals; correlations are those of the curvature.
    """
    mean = sampling_weight(known).astype(h.dtype)
    curvature = jnp.diag(known.matrix).astype(h.dtype).clip(0)
    weighted = _PARTS * known.weights[2:].astype(h.dtype)
    noise = _PARTS**2 * known._error() ** 2 + mean**2 * 2 * known.variance
    varied = (_VARIED * mean) ** 2 * curvature
    gain = varied / (varied * curvature + noise.astype(h.dtype) + 1e-30)
    ratio = jnp.clip(mean + gain * (weighted - mean * curvature), _LEAST_WEIGHT, 1)
    return jnp.sqrt(ratio)[:, None] * h * jnp.sqrt(ratio)


def curvature_query(model: Model, params: Params, clip: jax.Array, of_persons: bool) -> Query:
    """Weighted curvature of one record, and the norms that give the mean weight.

    The weight is that of the record's score at norm `clip`. The curvature of a person is shortened
    if it is too long; the norms as they are, and as they are then, tell by how much.
    """

    def one(record: Record) -> Mapping[str, Contribution]:
        if knows_responses(model):
            fair = fair_score(model, params, record, clip)
            weighted, ratio = fair.curvature, fair.ratio
        else:
            own = like_vector(params, record)
            ratio = unbiased_weight(model, own, record, clip)
            weighted = scaled(curvature(model, own, record), ratio)
        norm = contribution_norm(weighted)
        of_all = jnp.stack([norm, ratio * norm])
        # Each of the three is at most as long as the curvature.
        weights = jnp.concatenate([of_all, ratio * _diagonal(weighted)]) / _PARTS
        sums = {"curvature": weighted, "weights": weights}
        return sums | {"kept": norm} if of_persons else sums

    return one


def _diagonal(curvature: Contribution) -> jax.Array:
    """Diagonal of a record's curvature, (P,)."""
    if isinstance(curvature, Quadratic):
        return jnp.outer(jnp.diag(curvature.weight), curvature.vector**2).ravel()
    return jnp.diag(curvature)


def curvature_blocks(norm: Number, of_persons: bool) -> Mapping[str, Block]:
    """Blocks of `curvature_query`."""
    weights = {"weights": Block(norm, WEIGHT_SHARE, "whole")}
    if of_persons:
        weights["kept"] = Block(norm, WEIGHT_SHARE, "sum")
    rest = 1 - WEIGHT_SHARE * len(weights)
    return {"curvature": Block(norm, rest, "statistic")} | weights
