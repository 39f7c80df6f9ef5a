"""Posterior under independent normal or Student t priors, given a quadratic log-likelihood.

A Student t prior is a normal prior whose precision has a gamma distribution (West 1987). Mean field
variational Bayes replaces each precision by its expectation,

    E[precision] = (df + 1) / (df scale^2 + E[(t - mean)^2]),

and is iterated by the caller: `na-dpvi` in its rounds, `vips` of logistic regression to a fixed
point. Priors of J coefficients may have a common scale factor r as well. Its inverse square has a
gamma prior that is worth one coefficient, and the expectation

    E[r^-2] = (k + J) / (k + S),  S = sum of E[precision] E[(t - mean)^2],  k = 1,

with precisions in units of ``scale^-2 r^-2``. Noise passes for size: where coefficients are larger
than their prior says, S > J, a cautious rule takes k = J, and r is at most `LARGEST_COMMON`.
See ``docs/solvers/na-dpvi.md``.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.compilation import LITTLE_EFFORT
from skdpbayes.models.base import (
    Model,
    flat_start,
    prior_axes,
    prior_common_scale,
    prior_degrees,
    prior_matrix,
    prior_mean,
    prior_variance,
)
from skdpbayes.models.protocols import HasHyperPrior
from skdpbayes.posteriors.base import GaussianPosterior
from skdpbayes.posteriors.evidence import NormalLikelihood

REACH = 6.0  # prior standard deviations within which estimates lie
# The inverse square of the common scale factor has a gamma prior, whose shape and rate are half of
# this: it is worth one coefficient, of the size that the prior says.
COMMON_WORTH = 1.0
LARGEST_COMMON = 8.0  # common scale factor
_COMMON_SWEEPS = 20  # until it agrees with the precisions
_SWEEPS = 60  # until the precisions of Student t priors are those expected


def posterior_given(model: Model, likelihood: NormalLikelihood) -> GaussianPosterior:
    """Normal posterior of a model's parameters, as `na-dpvi` reports it."""
    with jax.enable_x64(True):
        own = likelihood
        parts = (own.information, own.linear, own.reported, own.believed)
        mean, precision = _given(model, *(np.asarray(x, np.float64) for x in parts))
        return GaussianPosterior.from_precision(np.asarray(mean), np.asarray(precision))


@partial(jax.jit, compiler_options=LITTLE_EFFORT)
def _given(
    model: Model,
    information: jax.Array,
    linear: jax.Array,
    reported: jax.Array,
    believed: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Mean and precision of `posterior_given`."""

    def sweep(_: jax.Array, before: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        found, precision = normal_given(model, information, linear, before, believed)
        return within_reach(model, found, REACH), jnp.linalg.inv(precision)

    start = prior_mean(model), jnp.linalg.inv(prior_matrix(model))
    sweeps = 1 if prior_degrees(model) is None else _SWEEPS
    mean, covariance = jax.lax.fori_loop(0, sweeps, sweep, start)
    return mean, normal_given(model, reported, linear, (mean, covariance), believed)[1]


def gained(h: jax.Array, spread: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gain ``h spread^-1`` and information of an observation ``h t + N(0, spread)``."""
    gain = jnp.linalg.solve(spread, h).T
    information = gain @ h
    return gain, (information + information.T) / 2


def normal_given(
    model: Model,
    information: jax.Array,
    linear: jax.Array,
    before: tuple[jax.Array, jax.Array],
    believed: jax.Array | float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """Mean and precision of the parameters t under ``linear't - t' information t / 2``.

    Parameters
    ----------
    model : Model
    information : array of shape (p, p)
        Positive semi-definite.
    linear : array of shape (p,)
    before : pair of arrays of shapes (p,) and (p, p)
        Mean and covariance of the parameters, under which precisions of Student t priors have their
        expectation. At the fixed point they are those of the result.
    believed : float
        Power of the common scale factor, from 0 (none) to 1.
    """
    start = prior_mean(model)
    if isinstance(model, HasHyperPrior):
        prior = model.expected_precision(*before)
    else:
        prior = prior_matrix(model, _factors(model, start, *before, believed))
    precision = information + prior
    return start + jnp.linalg.solve(precision, linear - information @ start), precision


def _factors(
    model: Model,
    start: jax.Array,
    mean: jax.Array,
    covariance: jax.Array,
    believed: jax.Array | float,
) -> jax.Array | float:
    """Expected precisions, times the squared scales of the prior."""
    df = prior_degrees(model)
    if df is None:
        return 1.0
    away, axes = mean - start, prior_axes(model)
    if axes is not None:
        away, covariance = axes @ away, axes @ covariance @ axes.T
    square = (away**2 + jnp.diag(covariance)) / prior_variance(model)

    def own(common: jax.Array | float) -> jax.Array:
        return (df + 1) / (df + common * square)

    shared = prior_common_scale(model)
    if shared is None:
        return own(1.0)

    n_shared = jnp.sum(shared)

    def sweep(_: jax.Array, common: jax.Array) -> jax.Array:
        size = jnp.sum(shared * own(common) * square)
        worth = jnp.where(size > n_shared, n_shared, COMMON_WORTH)
        expected = (worth + n_shared) / (worth + size)
        return jnp.maximum(LARGEST_COMMON**-2, expected) ** believed

    common = jax.lax.fori_loop(0, _COMMON_SWEEPS, sweep, jnp.ones(()))
    common = jnp.where(shared > 0, common, 1)
    return common * own(common)


def within_reach(model: Model, mean: jax.Array, deviations: float) -> jax.Array:
    """`mean`, moved to at most `deviations` prior standard deviations from the start.

    Five times as many where priors are Student t.
    """
    wide = 1 if prior_degrees(model) is None else 5
    start, axes = flat_start(model)[0], prior_axes(model)
    most = deviations * wide * jnp.sqrt(prior_variance(model))
    if axes is None:
        return jnp.clip(mean, start - most, start + most)
    own = axes @ (mean - start)
    return start + jnp.linalg.solve(axes, jnp.clip(own, -most, most))
