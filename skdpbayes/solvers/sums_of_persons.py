"""What is left of the scores of persons when their sums are clipped."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from skdpbayes.models.quadrature import normal_nodes

_TINY = 1e-30


def kept_of_sums(covariance: jax.Array, norm: jax.Array) -> jax.Array:
    """Slope of the mean of a clipped normal vector, over that of the vector itself.

    A person's sum of scores has mean zero at the truth and is nearly normal. Clipped to a norm, its
    mean follows the parameters less, by the factor ``E[|s|^2 min(1, norm / |s|)] / E[|s|^2]``
    (Stein's identity, averaged over directions). The length has the approximation of Wilson and
    Hilferty (1931), by the first two moments of its square.

    Parameters
    ----------
    covariance : array of shape (P, P)
        Of the sum of one person.
    norm : float

    Returns
    -------
    float scalar in (0, 1]
    """
    square = jnp.trace(covariance).clip(_TINY)
    third = 2 * jnp.sum(covariance**2).clip(_TINY) / square**2 / 9  # of a relative variance
    nodes, weights = normal_nodes(1, 33, 33)
    squares = square * (1 - third + nodes[:, 0] * jnp.sqrt(third)).clip(0) ** 3
    kept = jnp.minimum(1, norm / jnp.sqrt(squares.clip(_TINY)))
    return weights @ (squares * kept) / (weights @ squares).clip(_TINY)
