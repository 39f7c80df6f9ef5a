"""Topics from co-occurring words: symmetric non-negative factorisation of a noisy matrix."""

from __future__ import annotations

import jax
import jax.numpy as jnp

_STARTS, _ITERATIONS = 3, 150
# Largest eigenvalue of symmetric noise, in units of its standard deviation and root size; 2 in the
# limit.
_EDGE = 2.3


def topics_of_pairs(
    key: jax.Array, pairs: jax.Array, n_components: int, noise: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """Non-negative H of unit columns, with ``pairs`` near ``H R H'`` and R non-negative.

    Words of one topic occur together, so that the expected pairs are ``sum_kl R_kl h_k h_l'``. Only
    the largest eigenvalues of the matrix are used, one per topic, which removes most of its noise.
    Multiplicative updates (Lee and Seung 2001) run from several random starts; the best is kept.

    Parameters
    ----------
    key : key
    pairs : array of shape (m, m)
        Symmetric.
    n_components : int
    noise : float
        Standard deviation of the noise in an entry off the diagonal.

    Returns
    -------
    topics : array of shape (m, n_components)
    clear : float
        Share of these eigenvalues that stand out of the noise.
    """
    values, vectors = jnp.linalg.eigh(pairs)
    values, vectors = values[-n_components:].clip(0), vectors[:, -n_components:]
    clear = jnp.sum(values > _EDGE * noise * len(pairs) ** 0.5) / n_components
    tiny = 1e-12

    def times_pairs(h):
        return (h @ vectors * values) @ vectors.T

    def one_start(key):
        h = (
            jnp.abs(vectors[:, -1])
            * jax.random.gamma(key, 1.0, (n_components, len(pairs)), pairs.dtype)
            + 1e-9
        )
        h = h / jnp.linalg.norm(h, axis=1, keepdims=True)
        r, gram = jnp.eye(n_components, dtype=pairs.dtype) + 0.1, h @ h.T
        r = r * jnp.sum(times_pairs(h) * h) / jnp.sum((r @ gram) * (r @ gram).T).clip(tiny)

        def better(i, found):
            h, r = found
            wanted = ((r @ (h @ h.T)) @ r) @ h
            h = (h * jnp.sqrt((r @ times_pairs(h)).clip(0) / (wanted + tiny))).clip(tiny)
            norms = jnp.linalg.norm(h, axis=1, keepdims=True)
            h, r = h / norms, r * norms * norms.T
            gram = h @ h.T
            r = (r * jnp.sqrt((times_pairs(h) @ h.T).clip(0) / (gram @ r @ gram + tiny))).clip(tiny)
            return h, r

        h, r = jax.lax.fori_loop(0, _ITERATIONS, better, (h, r))
        fitted = r @ (h @ h.T)
        return jnp.sum(fitted * fitted.T) - 2 * jnp.sum(r * (times_pairs(h) @ h.T)), h

    losses, found = jax.lax.map(one_start, jax.random.split(key, _STARTS))
    return found[jnp.argmin(losses)].T, clear
