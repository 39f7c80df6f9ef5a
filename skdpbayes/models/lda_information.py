"""How much of the topics' counts documents tell, from documents simulated from given topics."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from skdpbayes.models.lda_local import collapsed_step
from skdpbayes.models.protocols import Number

N_SIMULATED = 256  # documents


def observed_share(
    key: jax.Array,
    topics: jax.Array,
    doc_topic_prior: Number,
    length: int,
    n_documents: int = N_SIMULATED,
) -> jax.Array:
    """Fraction of the information about each count that documents leave.

    A word of a document has topic k with probability phi_k. Were topics known, the information
    about a count of expectation ``sum phi`` would be complete; the share ``sum phi (1 - phi) / sum
    phi`` is missing (Louis 1982; Dempster, Laird and Rubin 1977, section 3.2). It is also the rate
    at which expected counts follow the topics at which they are expected.

    Parameters
    ----------
    key : key
    topics : array of shape (V, K)
        Columns of sum one.
    doc_topic_prior : float
    length : int
        Words of a simulated document.
    n_documents : int

    Returns
    -------
    share : array of shape (V, K)
        In (0, 1].
    """
    n_words, n_components = topics.shape
    of_documents, of_labels, of_words = jax.random.split(key, 3)
    shape = n_documents, n_components
    weights = jax.random.loggamma(of_documents, doc_topic_prior, shape, topics.dtype)
    true = jax.nn.softmax(weights, axis=1)
    labels = jax.random.categorical(of_labels, jnp.log(true)[:, None], shape=(n_documents, length))
    # All topics' distribution functions in one increasing list: k + F_k.
    steps = jnp.cumsum(topics.astype(float), axis=0).T
    steps = (steps / steps[:, -1:] + jnp.arange(n_components)[:, None]).ravel()
    uniform = jax.random.uniform(of_words, labels.shape)
    places = jnp.searchsorted(steps, labels + uniform) - labels * n_words
    words = places.clip(0, n_words - 1)

    def add(sums, document):
        words, true = document
        labels = collapsed_step(topics[words], jnp.ones(length, topics.dtype), doc_topic_prior)
        joint = topics * (doc_topic_prior + jnp.sum(labels, axis=0))
        phi = joint / jnp.sum(joint, axis=1, keepdims=True).clip(1e-30)
        weighted = (topics @ true)[:, None] * phi
        return (sums[0] + weighted * phi, sums[1] + weighted), None

    start = jnp.zeros_like(topics), jnp.zeros_like(topics)
    squares, sums = jax.lax.scan(add, start, (words, true))[0]
    return (squares / sums.clip(1e-30)).clip(1e-3, 1)
