"""Where keys come from.

Three independent keys drive a fit: sampling, noise and solver. The first two are secrets; the solver key may be
released (replaying a fit from its releases needs it).

The generator is Threefry-2x32 (Salmon et al. 2011) with 64-bit keys: good statistics, but not cryptographic, which
`privacy_spent_` says. It is the block function of JAX's generator, written without its loop over rounds: unrolled, XLA
fuses it into one kernel, which runs eight times as fast and compiles in a third of the time. Another generator (a
cryptographic one) replaces `GENERATOR` and nothing else.
"""

from __future__ import annotations

import math
import numbers
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

RANDOM_SOURCE = "threefry2x32, 64-bit keys (not cryptographic)"


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_BITS, _FOLD_IN, _SPLIT, _SEED = range(4)  # high counter words: what a key is used for never overlaps


def threefry(key, high, low):
    """Threefry-2x32, 20 rounds, of counters ``(high, low)``: two arrays of 32-bit words."""
    words = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    x, y = high + words[0], low + words[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = ((y << jnp.uint32(rotation)) | (y >> jnp.uint32(32 - rotation))) ^ x
        x, y = x + words[(group + 1) % 3], y + words[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y


def _random_bits(key, bit_width, shape):
    """One counter for each element: to concatenate both halves of the output would keep it from vectorising."""

    def draw():
        counters = jnp.arange(math.prod(shape), dtype=jnp.uint32)
        x, y = threefry(key, jnp.full_like(counters, _BITS), counters)
        bits = (x.astype(jnp.uint64) << 32) | y if bit_width == 64 else x >> (32 - bit_width)
        return bits.astype(f"uint{bit_width}").reshape(shape)

    # XLA would draw anew in every kernel that reads the bits, however many: it heeds no barrier there, only a branch.
    # This one is always taken, which XLA does not see.
    return jax.lax.cond((key[0] | 1) != 0, draw, draw)


def _fold_in(key, data):
    return jnp.stack(threefry(key, jnp.uint32(_FOLD_IN), jnp.asarray(data).astype(jnp.uint32)))


def _split(key, shape):
    counters = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    return jnp.stack(threefry(key, jnp.full_like(counters, _SPLIT), counters), axis=-1).reshape(*shape, 2)


def _seed(seed):
    """Key of a small integer (only `jax.random.key` needs this; fits take `fit_keys`)."""
    low = jnp.asarray(seed).astype(jnp.uint32)
    return jnp.stack(threefry(jnp.zeros(2, jnp.uint32), jnp.uint32(_SEED), low))


GENERATOR = define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in,
    name="skdpbayes_threefry2x32", tag="skt",
)  # fmt: skip


def wrap_keys(words):
    """Keys from 32-bit words, of shape (..., 2)."""
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl=GENERATOR)


class FitKeys(NamedTuple):
    """Independent keys of one fit, or of one of its rounds. Only the solver's may be released."""

    sampling: jax.Array
    noise: jax.Array
    solver: jax.Array

    def at(self, step) -> FitKeys:
        """Keys of one round (one vectorised hash for all three)."""
        return FitKeys(*jax.vmap(jax.random.fold_in, in_axes=(0, None))(jnp.stack(self), step))


def fit_keys(random_state, n_chains: int = 1) -> FitKeys:
    """Independent keys for sampling, noise and solver, for each chain.

    Parameters
    ----------
    random_state : None, int, numpy.random.RandomState or numpy.random.Generator
        None takes the keys from the operating system's entropy. Anything else is deterministic: whoever can guess
        the seed can remove the noise.
    n_chains : int

    Returns
    -------
    FitKeys
        Keys with a leading axis of length `n_chains`.
    """
    n_words = 3 * n_chains * 2
    words: np.ndarray
    if random_state is None:
        words = np.frombuffer(os.urandom(4 * n_words), np.uint32)
    elif isinstance(random_state, numbers.Integral) and int(random_state) >= 0:
        words = np.random.SeedSequence(int(random_state)).generate_state(n_words, np.uint32)
    elif isinstance(random_state, np.random.Generator):
        words = random_state.integers(0, 2**32, n_words, dtype=np.uint32)
    elif isinstance(random_state, np.random.RandomState):
        words = random_state.randint(0, 2**32, n_words, dtype=np.uint32)
    else:
        raise ValueError(
            f"random_state must be None, a non-negative integer, a RandomState or a Generator, got {random_state!r}."
        )
    return FitKeys(*wrap_keys(words.reshape(3, n_chains, 2)))
