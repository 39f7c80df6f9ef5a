"""Responses that stand for a law: few points, and their probabilities, by formulas alone.

Draws would need loops whose length depends on the record; points and densities do not.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import biject_to

_N = 41
_NEGLIGIBLE = 1e-9
# Steps that are short in the middle and reach far into the tails.
_STEPS = np.linspace(-6, 6, _N)
_LOCATED = (
    dist.Cauchy,
    dist.Gumbel,
    dist.Laplace,
    dist.Logistic,
    dist.Normal,
    dist.StudentT,
    dist.SoftLaplace,
)


def has_points(law: Any) -> bool:
    """Whether `points` knows the law: of one number, with a mean and a variance or a location."""
    if law.event_shape or int(np.prod(law.batch_shape)) != 1:
        return False
    if isinstance(law, dist.Unit | dist.Delta | dist.MaskedDistribution):
        return False
    if _is_censored(law) or not (_counts(law.support) or _is_line(law.support)):
        return False
    try:
        jax.eval_shape(_centre_and_spread, law)
    except NotImplementedError:
        return False
    return True


def points(law: Any) -> tuple[jax.Array, jax.Array]:
    """Responses (n,) and their probabilities (n,), of sum one; gradients stop here."""
    centre, spread = _centre_and_spread(law)
    if _counts(law.support):
        y, log_step = _counted(law.support, centre, spread)
    else:
        free, log_step = centre + spread * jnp.sinh(_STEPS), jnp.log(jnp.cosh(_STEPS))
        transform = biject_to(law.support)
        y = transform(free)
        log_step = log_step + transform.log_abs_det_jacobian(free, y)
    y = y.astype(jnp.float32)
    log = jax.vmap(lambda value: jnp.sum(law.log_prob(value)))(y) + log_step
    shares = jax.nn.softmax(jnp.where(jnp.isnan(log), -jnp.inf, log))
    # Far out, densities and their slopes may overflow: such points are put where most of the law is.
    far = shares < _NEGLIGIBLE
    y = jnp.where(far, y[jnp.argmax(shares)], y)
    return jax.lax.stop_gradient((y, jnp.where(far, 0, shares)))


def _centre_and_spread(law):
    """Of the response on the whole line: of a count itself, of a positive number its logarithm."""
    inner = law
    while isinstance(inner, dist.ExpandedDistribution | dist.Independent):
        inner = inner.base_dist
    if isinstance(inner, _LOCATED):
        return jnp.squeeze(law.base_dist.loc if inner is not law else inner.loc), jnp.squeeze(
            inner.scale
        )
    mean, variance = jnp.squeeze(law.mean), jnp.squeeze(law.variance)
    if _counts(law.support):
        return mean, jnp.sqrt(variance)
    transform = biject_to(law.support)
    centre = transform.inv(mean)
    return centre, jnp.sqrt(variance) * jnp.exp(-transform.log_abs_det_jacobian(centre, mean))


def _counted(support, centre, spread):
    """Whole numbers: all from the least one on if these suffice, else equally spaced ones."""
    least = support.lower_bound
    all_ = least + jnp.arange(_N)
    step = jnp.maximum(jnp.ceil(12 * spread / _N), 1)
    first = jnp.maximum(jnp.floor(centre - _N // 2 * step), least)
    spaced = first + step * jnp.arange(_N)
    few = centre + 8 * spread < least + _N
    return jnp.where(few, all_, spaced), jnp.zeros(_N)


def _counts(support):
    return support.is_discrete and hasattr(support, "lower_bound")


def _is_line(support):
    """Whether numbers of this support map to the whole line."""
    if support.is_discrete or support.event_dim:
        return False
    try:
        biject_to(support)
    except (NotImplementedError, KeyError):
        return False
    return True


def _is_censored(law):
    return isinstance(
        law,
        dist.LeftCensoredDistribution
        | dist.RightCensoredDistribution
        | dist.IntervalCensoredDistribution,
    )
