"""Threefry-2x32, the generator of the solver's key: it protects no secret.

It is JAX's generator, written here without its loop over rounds: unrolled, XLA fuses it into one
kernel, which makes 100 normal numbers inside a loop in a fifth of the time of JAX's own.
"""

from __future__ import annotations

import math
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl
from jax.typing import ArrayLike

Words = TypeVar("Words", jax.Array, np.ndarray)

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_BITS, _FOLD_IN, _SPLIT, _SEED = range(4)  # high counter words: uses of a key never overlap


def threefry(key: Words, high: Words, low: Words) -> tuple[Words, Words]:
    """Threefry-2x32, 20 rounds, of counters ``(high, low)``: two arrays of 32-bit words.

    Of arrays of JAX, traced or not, or of NumPy.
    """
    words = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    x, y = high + words[0], low + words[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))) ^ x
        x, y = x + words[(group + 1) % 3], y + words[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _random_bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    """One counter for each element: joining both halves of the output would not vectorise."""

    def draw() -> jax.Array:
        counters = jnp.arange(math.prod(shape), dtype=jnp.uint32)
        x, y = threefry(key, jnp.full_like(counters, _BITS), counters)
        bits = (x.astype(jnp.uint64) << 32) | y if bit_width == 64 else x >> (32 - bit_width)
        return bits.astype(f"uint{bit_width}").reshape(shape)

    # XLA would draw anew in every kernel that reads the bits, however many: it heeds no barrier
    # there, only a branch. This one is always taken, which XLA does not see.
    bits: jax.Array = jax.lax.cond((key[0] | 1) != 0, draw, draw)
    return bits


def _fold_in(key: jax.Array, data: ArrayLike) -> jax.Array:
    return jnp.stack(threefry(key, jnp.uint32(_FOLD_IN), jnp.asarray(data).astype(jnp.uint32)))


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    counters = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    return jnp.stack(threefry(key, jnp.full_like(counters, _SPLIT), counters), axis=-1).reshape(
        *shape, 2
    )


def _seed(seed: ArrayLike) -> jax.Array:
    """Key of a small integer (only `jax.random.key` needs this; fits take `fit_keys`)."""
    low = jnp.asarray(seed).astype(jnp.uint32)
    return jnp.stack(threefry(jnp.zeros(2, jnp.uint32), jnp.uint32(_SEED), low))


GENERATOR = define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in,
    name="skdpbayes_threefry2x32", tag="skt",
)  # fmt: skip


def wrap_keys(words: ArrayLike) -> jax.Array:
    """Keys from 32-bit words, of shape (..., 2)."""
    keys: jax.Array = jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl=GENERATOR)
    return keys


def words_of_steps(key: jax.Array, first: int, stop: int) -> np.ndarray:
    """Words of ``jax.random.fold_in(key, step)`` for each of these steps, (stop - first, 2).

    By NumPy: a program that folds for itself takes a tenth of a second longer to compile.
    """
    words, steps = np.asarray(jax.random.key_data(key)), np.arange(first, stop, dtype=np.uint32)
    return np.stack(threefry(words[:, None], np.full_like(steps, _FOLD_IN), steps), axis=-1)
