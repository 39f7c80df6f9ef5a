"""Posterior under a normal or a Student t prior, given a quadratic log-likelihood."""

from __future__ import annotations

import jax.numpy as jnp

from skdpbayes.models.base import prior_mean, prior_precision, prior_variance


def normal_given(model, information, linear, before):
    """Mean and precision of the parameters t under the log-likelihood ``linear't - t' information t / 2``.

    A Student t prior (``model.prior_df``) is a normal one with a gamma distributed precision for
    each parameter. Of this precision, variational Bayes takes the expectation under what was known
    of the parameters before (`_factors`); at the fixed point, under what this function returns.

    Parameters
    ----------
    model : Model
    information : array of shape (p, p)
        Positive semi-definite.
    linear : array of shape (p,)
    before : pair of arrays of shapes (p,) and (p, p)
        Mean and covariance of the parameters.
    """
    start = prior_mean(model)
    prior = prior_precision(model).astype(jnp.float64) * _factors(model, start, *before)
    precision = information + jnp.diag(prior)
    return start + jnp.linalg.solve(precision, linear - information @ start), precision


def _factors(model, start, mean, covariance):
    """Expected precisions in units of the prior's squared inverse scale: ``(df + 1) / (df + E[t^2] / scale^2)``."""
    df = getattr(model, "prior_df", None)
    if df is None:
        return 1.0
    square = (mean - start) ** 2 + jnp.diag(covariance)
    return (df + 1) / (df + square / prior_variance(model))


def reach(model, deviations):
    """So many prior standard deviations, or five times as many scales of a Student t prior."""
    return (
        deviations
        * (1 if getattr(model, "prior_df", None) is None else 5)
        * jnp.sqrt(prior_variance(model))
    )
