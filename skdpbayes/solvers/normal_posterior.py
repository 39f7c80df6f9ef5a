"""Posterior under independent normal or Student t priors, given a quadratic log-likelihood.

A Student t prior is a normal prior whose precision has a gamma distribution (West 1987). Mean field
variational Bayes replaces each precision by its expectation,

    E[precision] = (df + 1) / (df scale^2 + E[(t - mean)^2]),

and is iterated by the caller: `na-dpvi` in its rounds, `vips` of logistic regression to a fixed
point. Priors of J coefficients may have a common scale factor r as well. In rounds its inverse
square has a gamma prior that is worth one coefficient, and the expectation

    E[r^-2] = (k + J) / (k + S),  S = sum of E[precision] E[(t - mean)^2],  k = 1,

with precisions in units of ``scale^-2 r^-2``. Noise passes for size: where coefficients are larger
than their prior says, S > J, a cautious rule takes k = J, and r is at most 8. At the end the
posterior is averaged over r (`over_common_scales`). See ``docs/solvers/na-dpvi.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.compilation import LITTLE_EFFORT
from skdpbayes.models.base import (
    Model,
    flat_start,
    identified,
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

Moments = tuple[jax.Array, jax.Array]  # mean and covariance

REACH = 6.0  # prior standard deviations within which estimates lie
# In rounds the inverse square of the common scale factor has a gamma prior, whose shape and rate
# are half of this: it is worth one coefficient, of the size that the prior says.
_COMMON_WORTH = 1.0
_COMMON_SWEEPS = 20  # until it agrees with the precisions
_COMMON_SCALES = 2.0 ** np.arange(-4, 4)  # at which posteriors are found
_MORE_SHARED = 3.0  # coefficients by which its prior is worth more, above one
_NEGLIGIBLE = 6.0  # log density of a factor, below the likeliest, that does not matter
_FALLEN, _NEAR = 0.9, 1.05  # of the largest size, and of J: sizes below both have fallen
_BETWEEN = 8  # steps of the integral from one of them to the next
_SWEEPS = 60  # until the precisions of Student t priors are those expected


def posterior_given(model: Model, likelihood: NormalLikelihood) -> GaussianPosterior:
    """Normal posterior of a model's parameters, as `na-dpvi` reports it."""
    own = likelihood
    parts = (own.information, own.linear, own.reported)
    with jax.enable_x64(True):
        if own.by_factor is not None and _is_prior(model, own.scales):
            parts = own.by_factor
        exact = (np.asarray(x, np.float64) for x in (*parts, own.believed))
        mean, precision = _averaged(model, *exact)
        return GaussianPosterior.from_precision(np.asarray(mean), np.asarray(precision))


def _is_prior(model: Model, scales: np.ndarray | None) -> bool:
    """Whether the model's priors have a common factor of these scales."""
    if prior_common_scale(model) is None or scales is None:
        return False
    return bool(np.allclose(np.sqrt(prior_variance(model)), scales, rtol=1e-6))


def averaged_given(
    model: Model,
    information: jax.Array,
    linear: jax.Array,
    reported: jax.Array,
    believed: jax.Array | float = 1.0,
) -> Moments:
    """Mean and precision of `posterior_given`, where parts may have a first axis of factors."""
    sweeps = 1 if prior_degrees(model) is None else _SWEEPS
    start = prior_mean(model), jnp.linalg.inv(prior_matrix(model))

    def found(start: Moments, factor: jax.Array | None) -> tuple[Moments, Under]:
        under = (information, linear, reported)
        if linear.ndim == 2:
            under = (information[factor], linear[factor], reported[factor])

        def sweep(_: jax.Array, before: Moments) -> Moments:
            at, precision = normal_given(model, *under[:2], before, believed, common_of(factor))
            return within_reach(model, at, REACH), jnp.linalg.inv(precision)

        at = jax.lax.fori_loop(0, sweeps, sweep, start)
        precision = normal_given(model, under[2], under[1], at, believed, common_of(factor))[1]
        mean, covariance = at
        return at, Under(mean, covariance, jnp.linalg.inv(precision), ())

    averaged = over_common_scales(model, found, start, believed)[0]
    return averaged.mean, jnp.linalg.inv(averaged.reported)


_averaged = jax.jit(averaged_given, compiler_options=LITTLE_EFFORT)


def common_of(factor: jax.Array | None) -> jax.Array | None:
    """Inverse square of one of the factors of `over_common_scales`, by index."""
    return None if factor is None else jnp.asarray(_COMMON_SCALES**-2.0)[factor]


class Under(NamedTuple):
    """Posterior under one common scale factor, under each of them, or averaged."""

    mean: jax.Array  # (p,)
    covariance: jax.Array  # (p, p)
    reported: jax.Array  # covariance that is reported, (p, p)
    likelihood: Any  # a tree of arrays


class _Followed(NamedTuple):
    """Where `over_common_scales` has come to."""

    start: Any  # for the next factor
    under: Under
    size: jax.Array
    largest: jax.Array  # of the sizes until here
    slope: jax.Array  # of the log posterior density of log r
    log: jax.Array  # that density, over the one of the smallest factor
    most: jax.Array  # of these until here
    separable: jax.Array  # whether this factor does not count
    ended: jax.Array  # nor do larger ones


def averages_over_scales(model: Model) -> bool:
    """Whether the prior's common scale is averaged over, as with two classes.

    Ten classes would take six times as long, and only the prior tells what all of them share.
    """
    return prior_common_scale(model) is not None and identified(model) is None


def over_common_scales(
    model: Model,
    found: Callable[[Any, jax.Array | None], tuple[Any, Under]],
    start: Any,
    believed: jax.Array | float = 1.0,
) -> tuple[Under, Under | None]:
    """Posterior averaged over the common scale factor r of the prior, and under each factor.

    Where the prior has none, or it is not averaged over, it is the one posterior, and None.

    Along the fixed points of variational Bayes the derivative of the log evidence by log r is
    ``believed (S - J)``: all else is stationary there. So no value of it is needed, but for the
    sizes S under a few factors. Between these log S is linear in log r, nearly: it is constant
    without data, and falls by two where data decide.

    Parameters
    ----------
    model : Model
    found : callable
        Next start and posterior, given a start and the index of a factor (`common_of`), or None.
    start : tree of arrays
    believed : float
        Power of the factor, from 0 (none) to 1.
    """
    shared = prior_common_scale(model)
    if shared is None or not averages_over_scales(model):
        return found(start, None)[1], None
    n_shared = jnp.sum(shared)
    worth = n_shared + _MORE_SHARED
    logs, n = jnp.log(_COMMON_SCALES), len(_COMMON_SCALES)
    step = logs[1] - logs[0]

    def follow(
        last: _Followed, at: jax.Array
    ) -> tuple[_Followed, tuple[Under, jax.Array, jax.Array]]:
        start, under = jax.lax.cond(
            last.ended, lambda: (last.start, last.under), lambda: found(last.start, at)
        )
        size = _size(model, under.mean, under.covariance, jnp.exp(-2 * believed * logs[at]))
        above = jnp.where(logs[at] > 0, jnp.exp(-logs[at]), 0)
        slope = believed * (size - n_shared) - 2 * jnp.tanh(logs[at]) - worth * above
        log = last.log + step * (slope + last.slope) / 2
        most = jnp.maximum(log, last.most)
        fell = last.size < jnp.minimum(_FALLEN * last.largest, _NEAR * n_shared)
        separable = last.separable | fell & (size > jnp.maximum(last.size, n_shared))
        ended = separable | last.ended | (log + step * slope < most - _NEGLIGIBLE)
        largest = jnp.maximum(size, last.largest)
        now = _Followed(start, under, size, largest, slope, log, most, separable, ended)
        return now, (under, size, separable)

    # From the smallest factor upwards, as far as factors matter. Where noise hides much there is a
    # second maximum, of large solutions under which labels are nearly separable: it begins where
    # sizes rise again.
    zero, first = jnp.zeros(()), jax.eval_shape(found, start, jnp.zeros((), int))[1]
    first = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), first)
    nothing = _Followed(start, first, zero, zero, zero, zero, zero - jnp.inf, zero > 0, zero > 0)
    _, (under, size, separable) = jax.lax.scan(follow, nothing, jnp.arange(n))

    fine = jnp.linspace(logs[0], logs[-1], _BETWEEN * (n - 1) + 1)
    evidence = believed * (jnp.exp(jnp.interp(fine, logs, jnp.log(size.clip(1e-9)))) - n_shared)
    rises = (fine[1] - fine[0]) * (evidence[1:] + evidence[:-1]) / 2
    # The prior of log r^2 is logistic, times exp(-(J + 3) (1 - 1 / r)) above one: noise passes for
    # size.
    above = -jnp.expm1(-fine.clip(0))
    log_prior = -2 * jnp.logaddexp(fine, -fine) - worth * above
    log_density = jnp.concatenate([jnp.zeros(1), jnp.cumsum(rises)]) + log_prior
    counts = jnp.interp(fine, logs, separable.astype(fine.dtype)) == 0
    weight = jax.nn.softmax(jnp.where(counts, log_density, -jnp.inf))

    shares = jnp.maximum(0, 1 - jnp.abs(fine[:, None] - logs) / step)
    weights = weight @ shares
    averaged = jax.tree.map(lambda x: jnp.tensordot(weights, x, 1), under)
    away = shares @ under.mean - averaged.mean
    moved = (away.T * weight) @ away
    return averaged._replace(reported=averaged.reported + moved), under


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
    common: jax.Array | None = None,
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
    common : float, optional
        Inverse square of the factor. None: its expectation.
    """
    start = prior_mean(model)
    if isinstance(model, HasHyperPrior):
        prior = model.expected_precision(*before)
    else:
        prior = prior_matrix(model, _factors(model, *before, believed, common))
    precision = information + prior
    return start + jnp.linalg.solve(precision, linear - information @ start), precision


def _squares(model: Model, mean: jax.Array, covariance: jax.Array) -> jax.Array:
    """Expected squares of the parameters, over those of the prior's scales."""
    away, axes = mean - prior_mean(model), prior_axes(model)
    if axes is not None:
        away, covariance = axes @ away, axes @ covariance @ axes.T
    return (away**2 + jnp.diag(covariance)) / prior_variance(model)


def _size(
    model: Model, mean: jax.Array, covariance: jax.Array, common: jax.Array | float
) -> jax.Array:
    """S, in units of scales with the common factor."""
    df, shared = prior_degrees(model), prior_common_scale(model)
    assert df is not None and shared is not None
    square = common * _squares(model, mean, covariance)
    return jnp.sum(shared * (df + 1) / (df + square) * square)


def _factors(
    model: Model,
    mean: jax.Array,
    covariance: jax.Array,
    believed: jax.Array | float,
    given: jax.Array | None = None,
) -> jax.Array | float:
    """Expected precisions, times the squared scales of the prior."""
    df = prior_degrees(model)
    if df is None:
        return 1.0
    square, shared = _squares(model, mean, covariance), prior_common_scale(model)
    if shared is None:
        return (df + 1) / (df + square)
    common = (
        _expected_common(model, mean, covariance, believed) if given is None else given**believed
    )
    common = jnp.where(shared > 0, common, 1)
    return common * (df + 1) / (df + common * square)


def _expected_common(
    model: Model, mean: jax.Array, covariance: jax.Array, believed: jax.Array | float
) -> jax.Array:
    """Expected inverse square of the common scale factor."""
    shared = prior_common_scale(model)
    assert shared is not None
    n_shared = jnp.sum(shared)

    def sweep(_: jax.Array, common: jax.Array) -> jax.Array:
        size = _size(model, mean, covariance, common) / common
        worth = jnp.where(size > n_shared, n_shared, _COMMON_WORTH)
        expected = (worth + n_shared) / (worth + size)
        return jnp.maximum(_COMMON_SCALES[-1] ** -2, expected) ** believed

    return jax.lax.fori_loop(0, _COMMON_SWEEPS, sweep, jnp.ones(()))


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
