"""Private curvature of the log-likelihood: what a round releases, and the average of the releases.

A record contributes its curvature (negative Hessian) times the weight of its score, with the norms
that give the mean weight. Shared by `dpvi` with a full-rank guide and by `na-dpvi`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from skdpbayes.mechanism.contributions import contribution_norm, scaled
from skdpbayes.mechanism.spec import Block
from skdpbayes.models.base import Model, curvature, like_vector, unbiased_weight
from skdpbayes.models.denoising import noise_edge
from skdpbayes.models.protocols import Contribution, Number, Params, Record
from skdpbayes.models.responses import fair_score, knows_responses
from skdpbayes.solvers.base import Query, Scales, Sums

_SMALL = 0.1  # edge of small noise's spectrum, over the mean eigenvalue
WEIGHT_SHARE = 0.05  # budget share, in curvature rounds, of the mean weight


class Curvature(NamedTuple):
    """Average of the released curvatures."""

    matrix: jax.Array  # (P, P)
    variance: jax.Array  # noise variance of one off-diagonal entry
    # Sums of the norms of the records' weighted curvatures, and of these norms times the weights.
    weights: jax.Array
    n: jax.Array  # number of releases

    @classmethod
    def none(cls, p: int) -> Curvature:
        """Before the first release."""
        zero = jnp.zeros((), jnp.float32)
        return cls(
            jnp.zeros((p, p), jnp.float32),
            zero,
            jnp.zeros(2, jnp.float32),
            jnp.zeros((), jnp.int32),
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
        return Curvature(
            matrix=(1 - new) * self.matrix + new * (matrix + matrix.T) / 2,
            variance=(1 - new) ** 2 * self.variance + new**2 * scales["curvature"] ** 2 / 2,
            weights=(1 - new) * self.weights + new * estimate["weights"],
            n=n,
        )

    def mean_weight(self, *, towards: float, errors: float, least: float) -> jax.Array:
        """Mean weight of the records, shrunk `towards` a value and not below `least`.

        Shrinkage is by `errors` standard errors of the norms' sum.
        """
        norms, weighted = self.weights
        error = errors * (2 * self.variance * (1 / WEIGHT_SHARE - 1)) ** 0.5 + 1e-30
        return ((weighted + towards * error) / (norms.clip(0) + error)).clip(least, 1)


def sampling_weight(known: Curvature) -> jax.Array:
    """Mean weight of the records, shrunk towards 0.3 by its noise.

    It is the ratio of the weighted scores' covariance to their curvature.
    """
    return known.mean_weight(towards=0.3, errors=0.1, least=0.02)


def curvature_query(model: Model, params: Params, clip: jax.Array) -> Query:
    """Weighted curvature of one record, and the norms that give the mean weight.

    The weight is that of the record's score at norm `clip`.
    """

    def one(record: Record) -> Mapping[str, Contribution]:
        if knows_responses(model):
            fair = fair_score(model, params, record, clip)
            norm = contribution_norm(fair.curvature) / jnp.sqrt(jnp.asarray(2, clip.dtype))
            return {
                "curvature": fair.curvature,
                "weights": jnp.stack([norm, fair.ratio * norm]),
            }
        own = like_vector(params, record)
        weight = unbiased_weight(model, own, record, clip)
        weighted = scaled(curvature(model, own, record), weight)
        norm = contribution_norm(weighted) / jnp.sqrt(jnp.asarray(2, clip.dtype))
        return {"curvature": weighted, "weights": jnp.stack([norm, weight * norm])}

    return one


def curvature_blocks(norm: Number) -> Mapping[str, Block]:
    """Blocks of `curvature_query`."""
    return {"curvature": Block(norm, 1 - WEIGHT_SHARE), "weights": Block(norm, WEIGHT_SHARE)}
