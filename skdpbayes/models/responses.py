"""Clipped scores of mean zero, for records with responses whose laws the model knows.

Clipping shortens surprising records most, which moves the zero of the summed scores. Given the rest
of a record, the model says how likely each response is; so the expectation of the clipped score is
known too, and is taken off. What is left has mean zero at the truth whatever the covariates
(conditionally unbiased bounded influence: Künsch, Stefanski and Carroll 1989).

The score is ``J' u(y)``: J is the slope of the law's parameters, the same for all responses, and u
the score in these few parameters. Sums over responses need u alone.

Several responses of a record are independent given the rest of it. Each is clipped by itself, to
its part of the norm: the expectation of a sum that is clipped as a whole would be one over all
combinations.
"""

from __future__ import annotations

from typing import NamedTuple, TypeGuard

import jax
import jax.numpy as jnp

from skdpbayes.mechanism.contributions import Quadratic
from skdpbayes.models.protocols import Contribution, HasResponse, Params, Record, Response

_TINY = 1e-30
_WRONG = 0.3  # expected score over its root mean square, from which points are not the law's


class Fair(NamedTuple):
    """A record's clipped score less its expectation, and what the model expects of it."""

    score: jax.Array  # (P,)
    weight: jax.Array  # of responses that are not clipped
    curvature: Contribution  # (P, P): expected slope of the score
    covariance: Contribution  # (P, P): of the score's entries
    variances: jax.Array  # its diagonal, (P,)


def knows_responses(model: object) -> TypeGuard[HasResponse]:
    """Whether the model says how likely each response of a record is."""
    return isinstance(model, HasResponse) and model.known_responses


def _double(response: Response) -> Response:
    """Numbers in double precision, in the driver: lengths cancel if slopes are nearly collinear."""
    return jax.tree.map(lambda x: jnp.asarray(x, float), response)


def _squared_lengths(slope: jax.Array, u: jax.Array) -> jax.Array:
    """Of scores in the parameters of laws, (..., k)."""
    return jnp.sum((u @ (slope @ slope.T)) * u, axis=-1)


def _typical_squares(response: Response) -> jax.Array:
    """Mean squares of the lengths of the scores of each possible response, (R,)."""
    return jnp.sum(response.shares * _squared_lengths(response.slope, response.others), axis=1)


def typical_length(response: Response) -> jax.Array:
    """Root mean square of the lengths of a record's possible scores."""
    return jnp.sqrt(jnp.maximum(jnp.sum(_typical_squares(_double(response))), _TINY))


def typical_sizes(response: Response) -> jax.Array:
    """Root mean squares of the entries of a record's possible scores, (P,)."""
    slope, _, others, shares = _double(response)
    return jnp.sqrt(jnp.sum(shares[..., None] * jnp.square(others @ slope), axis=(0, 1)))


def typical_moments(response: Response) -> Contribution:
    """Second moments of the entries of a record's possible scores, (P, P)."""
    slope, _, others, shares = _double(response)
    return information(_second(others, shares), slope)


def _second(others: jax.Array, shares: jax.Array) -> jax.Array:
    """Weighted second moments of possible scores, summed over the responses, (k, k)."""
    others = others.reshape(-1, others.shape[-1])
    return (others * shares.reshape(-1, 1)).T @ others


def information(of_law: jax.Array, slope: jax.Array) -> Contribution:
    """Information (k, k) on the numbers of a law as one on the parameters, (P, P).

    For a law of one number the product is not formed: sums of it are one large product.
    """
    if len(slope) == 1:
        return Quadratic(of_law, slope[0])
    return slope.T @ of_law @ slope


def fair_score(model: HasResponse, params: Params, record: Record, norm: jax.Array) -> Fair:
    """Score of a record, clipped to `norm` and of mean zero given all but its responses.

    Parameters
    ----------
    model : HasResponse
    params, record : pytrees
    norm : float
        No score is longer.
    """
    response = _double(model.response(params, record))
    slope, own, others, shares = response

    def length(u: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.maximum(_squared_lengths(slope, u), _TINY))

    each = jnp.sqrt(jnp.maximum(_typical_squares(response), _TINY))
    # A response tells nothing if its points do not stand for its law, as if nearly all of that were
    # closer to one than single precision tells, or if the law does not depend on parameters. This
    # follows from covariates alone, so that leaving it out is no bias.
    stands = length(jnp.einsum("rn,rnk->rk", shares, others)) <= _WRONG * each
    each = jnp.where(stands, each, 0)
    total = jnp.maximum(jnp.sum(each), _TINY)
    weight = jnp.minimum(norm / total, 1)
    norms = norm * each / total
    kept = jnp.minimum(weight, norms[:, None] / length(others))  # factors of clipping
    # The scores themselves have mean zero.
    mean = jnp.einsum("rn,rnk->rk", shares * (kept - jnp.where(stands, weight, 0)[:, None]), others)
    # With its expectation taken off, a score may be longer than its norm by the latter's length.
    room = 1 / (1 + jnp.max(jnp.where(stands, length(mean) / jnp.where(stands, norms, 1), 0)))
    # Without a response a record has no score, and must have no curvature.
    room = jnp.where(jnp.isfinite(own).all() & stands.any(), room, jnp.nan)
    own_kept = jnp.minimum(weight, norms / length(own))
    score = room * jnp.sum(own_kept[:, None] * own - mean, axis=0)
    second = _second(others, shares * kept)
    spread = room**2 * (_second(others, shares * kept**2) - mean.T @ mean)
    variances = jnp.maximum(jnp.sum((spread @ slope) * slope, axis=0), 0)
    return Fair(
        score @ slope,
        room * weight,
        information(room * second, slope),
        information(spread, slope),
        variances,
    )
