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
# Starts, gradient steps from each, and damped Gauss-Newton steps from the better half of them: the
# ranking after gradient steps often misses the best optimum.
_RESTARTS, _SCREEN, _POLISH = 24, 150, 40
_MOST_PARAMETERS = 2**11  # of all mixtures that are polished: fewer of large ones
# Differences of log posteriors: up to the first, two fits are taken to be at one optimum; beyond
# the second, an optimum is no rival of the best.
_SAME, _HOPELESS = 0.1, 20.0

N_FITS = 4
"""Number of optima that are kept."""


class Sketch(NamedTuple):
    """Sum of the features of `total` records whose mean is zero and covariance one.

    It is estimated from a sample of them, of some `rate`.
    """

    frequencies: jax.Array  # (m, d)
    value: jax.Array  # (2 m,)
    total: jax.Array
    total_error: jax.Array  # standard deviation of the total, as a share
    rate: jax.Array


class SketchFit(NamedTuple):
    """Mixtures fitted to a sketch, the best optimum first; `errors` are as `Start.errors`.

    Where there are fewer optima than `N_FITS`, the best one is repeated, with a `log_posterior` of
    minus infinity: a repeat is never chosen.
    """

    log_posterior: jax.Array  # (N_FITS,)
    counts: jax.Array  # (N_FITS, K), and so on
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
    """Mixtures of k components fitted to a sketch with noise of standard deviation `noise`."""
    m, d = sketch.frequencies.shape
    size, below = _size(d, k), np.tril_indices(d, -1)
    # Sampling variance: each sampled record adds about 1 / (2 m rate^2) to an entry.
    std = jnp.sqrt(noise**2 + sketch.total / (2 * m * sketch.rate))
    n_lower = len(below[0]) if kind in ("full", "tied") else 0
    # Vague priors: standard deviations of the parameters. Axes of length one are shared.
    vague = {
        "log_std": jnp.full({"tied": (1, d), "spherical": (k, 1)}.get(kind, (k, d)), 0.5),
        "logits": jnp.ones(k),
        "lower": jnp.full((1 if kind == "tied" else k, n_lower), 0.5),
        "means": jnp.full((k, d), 1.2),
        "total": jnp.ones(()),  # of its logarithm, in units of its error
    }
    whole = {"log_std": (k, d), "lower": (k, n_lower), "means": (k, d)}
    precision, unravel = ravel_pytree(jax.tree.map(lambda x: x**-2, vague))

    def factor(own):
        root = jnp.diag(jnp.exp(own["log_std"]))
        return size * (root.at[below].set(own["lower"]) if n_lower else root)

    def of_component(own):
        one = jnp.ones(1)
        return expected_features(sketch.frequencies, one, own["means"][None], factor(own)[None])

    def residual(counts, values):
        return (sketch.value - counts @ values) / std

    def parts(x):
        theta = unravel(x)
        own = {name: jnp.broadcast_to(theta[name], shape) for name, shape in whole.items()}
        total = sketch.total * jnp.exp(sketch.total_error * theta["total"])
        return total * jax.nn.softmax(theta["logits"]), own

    def loss(x):  # minus the log posterior
        counts, own = parts(x)
        error = residual(counts, jax.vmap(of_component)(own))
        return (error @ error + precision @ x**2) / 2

    def normal_equations(x):
        counts, own = parts(x)
        values, slopes = jax.vmap(lambda one: (of_component(one), jax.jacfwd(of_component)(one)))(
            own
        )
        error, expected = residual(counts, values), counts @ values
        # Of the sum over components; the features' axis goes first.
        of_sum = {}
        for name in own:
            shared = [i + 1 for i, length in enumerate(vague[name].shape) if length == 1]
            slope = jnp.einsum("k,km...->mk...", counts, slopes[name])
            of_sum[name] = slope.sum(axis=shared, keepdims=True) if shared else slope
        of_sum["logits"] = (values - expected / counts.sum()).T * counts
        of_sum["total"] = sketch.total_error * expected
        jacobian = -jax.vmap(lambda row: ravel_pytree(row)[0])(of_sum) / std
        matrix = jacobian.T @ jacobian + jnp.diag(precision)
        return error @ error + precision @ x**2, matrix, error @ jacobian + precision * x

    zeros = jax.tree.map(jnp.zeros_like, vague)
    starts = jax.vmap(lambda means: ravel_pytree(zeros | {"means": means})[0])(
        jax.random.normal(key, (_RESTARTS, k, d))
    )
    losses, found = _adam(loss, starts, _SCREEN)
    n_polished = min(_RESTARTS // 2, max(1, _MOST_PARAMETERS // precision.size))
    found = found[jnp.argsort(losses)[:n_polished]]
    losses, found, covariances = jax.vmap(lambda x: _gauss_newton(normal_equations, x, _POLISH))(
        found
    )
    order = jnp.argsort(losses)  # what is not a number comes last
    log_posterior = -losses[order] / 2
    rival = jnp.isfinite(log_posterior) & (log_posterior > log_posterior[0] - _HOPELESS)
    rival &= -jnp.diff(log_posterior, prepend=jnp.inf) > _SAME
    chosen = jnp.argsort(~rival)[:N_FITS]
    chosen = jnp.pad(chosen, (0, N_FITS - len(chosen)), constant_values=len(order))
    is_rival = jnp.where(chosen < len(order), rival[chosen], False)
    log_posterior = jnp.where(is_rival, log_posterior[chosen], -jnp.inf)
    chosen = order[jnp.where(is_rival, chosen, 0)]

    logits = unravel(jnp.arange(precision.size, dtype=precision.dtype))["logits"].astype(int)

    def fit(log_posterior, x, covariance):
        (counts, own), variance = parts(x), unravel(jnp.diag(covariance))
        factors, means = jax.vmap(factor)(own), own["means"]
        scale = jnp.exp(jnp.mean(jnp.log(jnp.diagonal(factors, axis1=1, axis2=2)), axis=1))
        slope = jnp.diag(counts) - jnp.outer(counts, counts) / counts.sum()  # in the logits
        errors = [
            jnp.einsum("ij,jl,il->i", slope, covariance[jnp.ix_(logits, logits)], slope),
            variance["means"].mean(axis=1) / scale**2,
            jnp.broadcast_to(4 * variance["log_std"].mean(axis=1), k),
        ]
        covariances = factors @ jnp.swapaxes(factors, 1, 2)
        return SketchFit(log_posterior, counts, means, covariances, jnp.stack(errors))

    return jax.vmap(fit)(log_posterior, found[chosen], covariances[chosen])


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


def _gauss_newton(normal_equations, x, n_steps):
    """Least squares by Levenberg and Marquardt: sum of squares, point, inverse of ``J'J``."""

    def step(_, carry):
        x, damping, least, matrix, slope = carry
        factor = jnp.linalg.cholesky(matrix + damping * jnp.diag(jnp.diag(matrix)))
        trial = x - jax.scipy.linalg.cho_solve((factor, True), slope)
        new = trial, damping / 3, *normal_equations(trial)
        better = new[2] < least
        old = x, damping * 4, least, matrix, slope
        x, damping, *rest = (jnp.where(better, *pair) for pair in zip(new, old, strict=True))
        return x, jnp.clip(damping, 1e-9, 1e9), *rest

    # The first step looks around where it is.
    damping, least = jnp.asarray([0.03, jnp.inf], x.dtype)
    start = x, damping, least, jnp.eye(x.size, dtype=x.dtype), jnp.zeros_like(x)
    x, _, least, matrix, _ = jax.lax.fori_loop(0, n_steps + 1, step, start)
    eye = jnp.eye(x.size, dtype=x.dtype)
    return least, x, jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(matrix), True), eye)
