"""Start for a mixture, from one noisy sum of random Fourier features.

The characteristic function of a normal mixture is known. A mixture is fitted to noisy values of it
by least squares, with restarts at no cost in privacy (Keriven, Bourrier, Gribonval and Pérez 2018;
with privacy: Schellekens, Chatalic, Houssiau, de Montjoye, Jacques and Gribonval 2019). The
features of any record have norm 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

N_FREQUENCIES = 256
# Starts, gradient steps from each, and damped Gauss-Newton steps from the best.
_RESTARTS, _SCREEN, _POLISH = 24, 150, 40


class Sketch(NamedTuple):
    """Sum of the features of `total` records whose mean is zero and covariance one."""

    frequencies: jax.Array  # (m, d)
    value: jax.Array  # (2 m,)
    total: jax.Array


class SketchFit(NamedTuple):
    """Mixture fitted to a sketch; `errors` are as `mixture.Start.errors`."""

    weights: jax.Array
    means: jax.Array
    covariances: jax.Array
    errors: jax.Array


def frequencies(d: int, k: int, m: int = N_FREQUENCIES) -> np.ndarray:
    """Public frequencies: random directions, lengths from 1/2 to 3 over a component's size."""
    rng = np.random.default_rng(0)
    direction = rng.standard_normal((m, d))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    length = np.exp(rng.uniform(math.log(0.5), math.log(3 / _size(d, k)), (m, 1)))
    return (direction * length).astype(np.float32)


def _size(d, k):
    """Standard deviation of one of k components that fill a unit normal distribution."""
    return 0.7 * k ** (-1 / d)


def features(frequencies, x):
    """Cosines and sines, of norm 1 together."""
    angle = frequencies @ x
    return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)]) / math.sqrt(len(frequencies))


def expected_features(frequencies, weights, means, factors):
    """Mean of `features` under a normal mixture with covariances ``factors factors'``."""
    angle = frequencies @ means.T
    decay = jnp.exp(-jnp.sum(jnp.einsum("mi,kij->mkj", frequencies, factors) ** 2, axis=2) / 2)
    parts = [(decay * jnp.cos(angle)) @ weights, (decay * jnp.sin(angle)) @ weights]
    return jnp.concatenate(parts) / math.sqrt(len(frequencies))


def fit_sketch(key, sketch: Sketch, noise, k: int, kind: str) -> SketchFit:
    """Mixture of k components fitted to a sketch with noise of standard deviation `noise`."""
    m, d = sketch.frequencies.shape
    size, lower = _size(d, k), jnp.tri(d, k=-1)
    # Sampling variance: each record adds about 1 / (2 m) to an entry.
    std = jnp.sqrt(noise**2 + sketch.total / (2 * m))

    def mixture(theta):
        log_std = theta["log_std"]
        if kind == "spherical":
            log_std = jnp.broadcast_to(log_std.mean(axis=1, keepdims=True), (k, d))
        factors = size * jnp.exp(log_std)[:, :, None] * jnp.eye(d)
        if kind in ("full", "tied"):
            factors = factors + size * theta["lower"] * lower
        return jax.nn.softmax(theta["logits"]), theta["means"], factors

    def residuals(theta):  # half their squared norm is minus the log posterior, with vague priors
        error = sketch.value - sketch.total * expected_features(sketch.frequencies, *mixture(theta))
        prior = [
            theta["logits"],
            theta["means"] / 1.2,
            theta["log_std"] / 0.5,
            theta["lower"] / 0.5,
        ]
        return jnp.concatenate([error / std, *(x.ravel() for x in prior)])

    def loss(theta):
        return jnp.sum(residuals(theta) ** 2) / 2

    shapes = {"log_std": (k, d), "logits": (k,), "lower": (k, d, d), "means": (k, d)}
    zero, unravel = ravel_pytree({name: jnp.zeros(shape) for name, shape in shapes.items()})
    starts = (
        jnp.zeros((_RESTARTS, zero.size))
        .at[:, -k * d :]
        .set(jax.random.normal(key, (_RESTARTS, k * d)))
    )  # means
    losses, found = _adam(lambda v: loss(unravel(v)), starts, _SCREEN)
    best = jnp.argmin(jnp.nan_to_num(losses, nan=jnp.inf))
    flat, covariance = _gauss_newton(lambda v: residuals(unravel(v)), found[best], _POLISH)
    theta, variance = unravel(flat), unravel(jnp.diag(covariance))
    weights, means, factors = mixture(theta)
    scale = jnp.exp(jnp.mean(jnp.log(jnp.diagonal(factors, axis1=1, axis2=2)), axis=1))
    slope = jnp.diag(weights) - jnp.outer(weights, weights)  # of the weights in the logits
    logits = unravel(jnp.arange(flat.size, dtype=flat.dtype))["logits"].astype(int)
    errors = [
        sketch.total**2
        * jnp.einsum("ij,jl,il->i", slope, covariance[jnp.ix_(logits, logits)], slope),
        variance["means"].mean(axis=1) / scale**2,
        4 * variance["log_std"].mean(axis=1),
    ]
    return SketchFit(weights, means, factors @ jnp.swapaxes(factors, 1, 2), jnp.stack(errors))


def _adam(loss, starts, n_steps, rate=0.1):
    """Adam from each of `starts`; last losses and points."""
    adam = optax.scale_by_adam(b2=0.99)

    def step(i, carry):
        x, moments, _ = carry
        values, slope = jax.vmap(jax.value_and_grad(loss))(x)
        direction, moments = adam.update(slope, moments)
        return x - rate * jnp.minimum(1, 2 - 2 * i / n_steps) * direction, moments, values

    zero = jnp.zeros_like(starts[:, 0])
    x, _, values = jax.lax.fori_loop(0, n_steps, step, (starts, adam.init(starts), zero))
    return values, x


def _gauss_newton(residuals, x, n_steps):
    """Least squares by Levenberg and Marquardt; also the inverse of the last ``J'J``."""

    def with_value(x):
        value = residuals(x)
        return value, value

    def step(_, carry):
        x, damping, least, matrix, slope = carry
        factor = jnp.linalg.cholesky(matrix + damping * jnp.diag(jnp.diag(matrix)))
        trial = x - jax.scipy.linalg.cho_solve((factor, True), slope)
        jacobian, value = jax.jacfwd(with_value, has_aux=True)(trial)
        new = trial, damping / 3, value @ value, jacobian.T @ jacobian, jacobian.T @ value
        better = new[2] < least
        old = x, damping * 4, least, matrix, slope
        x, damping, *rest = (jnp.where(better, *pair) for pair in zip(new, old, strict=True))
        return x, jnp.clip(damping, 1e-9, 1e9), *rest

    # The first step looks around where it is.
    damping, least = jnp.asarray([0.03, jnp.inf], x.dtype)
    start = x, damping, least, jnp.eye(x.size, dtype=x.dtype), jnp.zeros_like(x)
    x, _, _, matrix, _ = jax.lax.fori_loop(0, n_steps + 1, step, start)
    return x, jax.scipy.linalg.cho_solve(
        (jnp.linalg.cholesky(matrix), True), jnp.eye(x.size, dtype=x.dtype)
    )
