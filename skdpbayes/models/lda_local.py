"""Local steps of latent Dirichlet allocation: the topics of one document's words."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma

ITERATIONS = 20


def e_step(topics, counts, prior):
    """Local step of variational Bayes for one document, in a fixed number of iterations.

    Parameters
    ----------
    topics : array of shape (L, K)
        Exponentials of expected logarithms, for the document's words.
    counts : array of shape (L,)
    prior : float

    Returns
    -------
    proportions : array of shape (K,)
        Exponential of the expected logarithms, up to a factor.
    ratio : array of shape (L,)
        Counts over ``topics @ proportions``.
    """
    n_components = topics.shape[1]

    def ratio_of(proportions):
        return counts / jnp.sum(topics * proportions, axis=1).clip(1e-30)

    def proportions_of(concentration):
        return jnp.exp(digamma(concentration) - digamma(jnp.sum(concentration)))

    def closer(i, concentration):
        proportions = proportions_of(concentration)
        return prior + proportions * jnp.sum(topics * ratio_of(proportions)[:, None], axis=0)

    start = jnp.full(n_components, prior + jnp.sum(counts) / n_components, topics.dtype)
    proportions = proportions_of(jax.lax.fori_loop(0, ITERATIONS, closer, start))
    return proportions, ratio_of(proportions)


def collapsed_step(topics, counts, prior):
    """Probabilities of each word's topic in one document, its proportions integrated out.

    Collapsed variational Bayes of order zero (Asuncion, Welling, Smyth and Teh 2009, equation 12):
    each occurrence of a word sees the expected counts of the others.

    Parameters
    ----------
    topics : array of shape (L, K)
    counts : array of shape (L,)
    prior : float

    Returns
    -------
    labels : array of shape (L, K)
        Rows of sum one, or of zeros where `topics` are.
    """

    def normalised(joint):
        return joint / jnp.sum(joint, axis=1, keepdims=True).clip(1e-30)

    def closer(i, labels):
        others = jnp.sum(labels * counts[:, None], axis=0) - labels
        return normalised(topics * (prior + others.clip(0)))

    return jax.lax.fori_loop(0, ITERATIONS, closer, normalised(topics))
