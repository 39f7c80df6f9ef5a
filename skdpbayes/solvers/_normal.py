"""Posterior under a normal prior, given a quadratic log-likelihood."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.models.base import flat_start, prior_precision, prior_variance

_FACTORS = np.geomspace(1e-8, 1e4, 241)  # of the prior precision, in units of their prior mean


def normal_given(model, information, linear):
    """Mean and precision of the parameters t under the log-likelihood ``linear't - t' information t / 2``.

    With a `hyper_prior` of the model, a gamma distribution of a factor by which the prior precision is multiplied, the
    posterior is a mixture over the factor, each weighed by its evidence: here, its mean and covariance.

    Parameters
    ----------
    model : Model
        With an independent normal prior.
    information : array of shape (p, p)
        Positive semi-definite.
    linear : array of shape (p,)
    """
    start, prior = flat_start(model)[0].astype(jnp.float64), prior_precision(model).astype(jnp.float64)
    linear = linear - information @ start  # about the mean of the prior
    if getattr(model, "hyper_prior", None) is None:
        precision = information + jnp.diag(prior)
        return start + jnp.linalg.solve(precision, linear), precision
    shape, rate = model.hyper_prior
    root = jnp.sqrt(prior)
    values, vectors = jnp.linalg.eigh(information / root[:, None] / root)
    along, factor = vectors.T @ (linear / root), _FACTORS[:, None] * shape / rate
    total = values.clip(0) + factor
    log = jnp.sum(jnp.log(factor / total) + along**2 / total, axis=1) / 2
    weights = jax.nn.softmax(log + shape * jnp.log(factor[:, 0]) - rate * factor[:, 0])
    means = along / total
    mean = weights @ means
    spread = jnp.diag(weights @ (1 / total)) + (means - mean).T @ (weights[:, None] * (means - mean))
    vectors = root[:, None] * vectors
    return start + (vectors / prior[:, None]) @ mean, vectors @ jnp.linalg.inv(spread) @ vectors.T


def reach(model, deviations):
    """So many prior standard deviations, or five times as many where their scale is learnt."""
    return deviations * (1 if getattr(model, "hyper_prior", None) is None else 5) * jnp.sqrt(prior_variance(model))
