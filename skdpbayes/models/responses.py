"""Clipped scores of mean zero, for records with one response whose law the model knows.

Clipping shortens surprising records most, which moves the zero of the summed scores. Given the rest
of a record, the model says how likely each response is; so the expectation of the clipped score is
known too, and is taken off. What is left has mean zero at the truth whatever the covariates
(conditionally unbiased bounded influence: Künsch, Stefanski and Carroll 1989).

The score is ``J' u(y)``: J is the slope of the law's parameters, the same for all responses, and u
the score in these few parameters. Sums over responses need u alone.
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
    weight: jax.Array  # of a score that is not clipped
    curvature: Contribution  # (P, P): expected slope of the score
    covariance: Contribution  # (P, P): of the score's entries
    variances: jax.Array  # its diagonal, (P,)


def knows_responses(model: object) -> TypeGuard[HasResponse]:
    """Whether the model says how likely each response of a record is."""
    return isinstance(model, HasResponse) and model.one_response


def _double(response: Response) -> Response:
    """Numbers in double precision, in the driver: lengths cancel if slopes are nearly collinear."""
    return jax.tree.map(lambda x: jnp.asarray(x, float), response)


def typical_length(response: Response) -> jax.Array:
    """Root mean square of the lengths of a record's possible scores."""
    slope, _, others, shares = _double(response)
    squares = jnp.sum((others @ (slope @ slope.T)) * others, axis=1)
    return jnp.sqrt(jnp.maximum(shares @ squares, _TINY))


def typical_sizes(response: Response) -> jax.Array:
    """Root mean squares of the entries of a record's possible scores, (P,)."""
    slope, _, others, shares = _double(response)
    return jnp.sqrt(shares @ jnp.square(others @ slope))


def typical_moments(response: Response) -> Contribution:
    """Second moments of the entries of a record's possible scores, (P, P)."""
    slope, _, others, shares = _double(response)
    return information((others * shares[:, None]).T @ others, slope)


def information(of_law: jax.Array, slope: jax.Array) -> Contribution:
    """Information (k, k) on the numbers of a law as one on the parameters, (P, P).

    For a law of one number the product is not formed: sums of it are one large product.
    """
    if len(slope) == 1:
        return Quadratic(of_law, slope[0])
    return slope.T @ of_law @ slope


def fair_score(model: HasResponse, params: Params, record: Record, norm: jax.Array) -> Fair:
    """Score of a record, clipped to `norm` and of mean zero given all but its response.

    Parameters
    ----------
    model : HasResponse
    params, record : pytrees
    norm : float
        No score is longer.
    """
    slope, own, others, shares = response = _double(model.response(params, record))
    gram = slope @ slope.T

    def length(u: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.maximum(jnp.sum((u @ gram) * u, axis=-1), _TINY))

    typical = typical_length(response)
    weight = jnp.minimum(norm / typical, 1)
    kept = jnp.minimum(weight, norm / length(others))  # factors of clipping
    mean = (shares * (kept - weight)) @ others  # the score itself has mean zero
    # With its expectation taken off, a score may be longer than `norm` by the latter's length.
    room = 1 / (1 + length(mean) / norm)
    # Without a response a record has no score, and must have no curvature. Nor has one whose points
    # do not stand for the law, as if nearly all of it were closer to one than single precision
    # tells: that depends on covariates alone, so that leaving the record out is no bias.
    stands = length(shares @ others) <= _WRONG * typical
    room = jnp.where(jnp.isfinite(own).all() & stands, room, jnp.nan)
    score = room * (jnp.minimum(weight, norm / length(own)) * own - mean)
    second = (others * (shares * kept)[:, None]).T @ others
    spread = (others * (shares * kept**2)[:, None]).T @ others - jnp.outer(mean, mean)
    spread = room**2 * spread
    variances = jnp.maximum(jnp.sum((spread @ slope) * slope, axis=0), 0)
    return Fair(
        score @ slope,
        room * weight,
        information(room * second, slope),
        information(spread, slope),
        variances,
    )
